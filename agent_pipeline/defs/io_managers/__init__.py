"""How Dagster assets are stored and loaded: tables (`parquet`) and model directories (`artifacts`).

Thin: the places, the atomic writes and the manifests are the lake's
(`agent_pipeline.storage.lake`).
"""
