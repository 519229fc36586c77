"""IO managers, which store and load assets: tables (`parquet`) and model folders (`artifacts`).

Thin: the places, the atomic writes and the manifests are the lake's
(`agent_pipeline.storage.lake`).
"""
