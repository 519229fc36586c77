"""Heavy tasks, their parameters, the cache of their artifacts, and where they run."""
