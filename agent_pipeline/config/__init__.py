"""Settings: `pipeline.toml` and the environment as one typed tree."""
