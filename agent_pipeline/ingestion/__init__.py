"""The steps from a store to the table `sessions`: discovery, reading, and incremental ingestion."""
