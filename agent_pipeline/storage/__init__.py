"""Storage of tables and model directories under one root, which is a local folder or a bucket."""
