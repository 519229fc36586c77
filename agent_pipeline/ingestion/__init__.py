"""From a store to the table `sessions`: discovery, reading, and incremental ingestion."""
