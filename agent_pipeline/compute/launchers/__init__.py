"""Launchers: one per place where the worker can run."""
