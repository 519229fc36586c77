"""Launchers of the worker: one launcher per place where the worker can run."""
