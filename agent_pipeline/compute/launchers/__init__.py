"""How the worker process is started: a launcher a place where it can run."""
