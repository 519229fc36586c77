"""The server of the pages that people read, and of the review.

The content of the pages belongs to `reports` and `promotion`, and the middleware that keeps other
pages away to `cli.webserver`.
"""
