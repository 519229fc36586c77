"""From curated sessions to the forms that trainers read: SFT rows, preference pairs, ShareGPT conversations.

Pure functions from sessions to rows, the permanent split by task, and the schemas of the tables. Every row carries `session_id`,
`content_sha256` and `task_key`, so that it can be traced to the session it came from.
"""
