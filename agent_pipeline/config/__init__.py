"""Settings: `pipeline.toml` and the environment variables as one typed tree."""
