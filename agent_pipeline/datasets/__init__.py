"""The forms of curated sessions that trainers read: SFT rows, preference pairs, KTO rows, ShareGPT.

The permanent split by task, the tables' schemas and the published files belong here. Which rows
are trained on does not: that is decided in `selection`.

Every row has `session_id`, `content_sha256` and `task_key`, which name the session it is from.
"""
