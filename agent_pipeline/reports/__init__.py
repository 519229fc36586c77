"""The pages and logs that people read: HTML pages, the report of episodes, and logs for Inspect.

This package computes no scores and makes no decisions.
"""
