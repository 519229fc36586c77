"""Selection: which rows are trained on, which are left out and why, and what is replayed.

docs/explanation/selection.md describes the strategies and the guards.
"""
