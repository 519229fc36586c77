"""Heavy tasks: their parameters, the cache of their artifacts, and the places where they run."""
