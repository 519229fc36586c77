"""Heavy tasks, the worker process that runs them, and the launchers that start it."""
