"""Datasets that are made from curated sessions: SFT rows, preference pairs, KTO rows and ShareGPT.

The permanent split by task, the tables' schemas and the published files belong here. The choice of
the rows to train on belongs to `selection`.

Every row has `session_id`, `content_sha256` and `task_key`, which identify the session that the row
comes from.
"""
