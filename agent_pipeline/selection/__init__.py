"""Selection of the training rows: which rows are used, which rows are left out and why, and replay.

docs/explanation/selection.md describes the strategies and the regression checks.
"""
