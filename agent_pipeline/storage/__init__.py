"""Tables and model directories under one root, a local folder or a bucket."""
