"""Choosing the rows worth training on: fewer rows, the same skill, and columns that say why every other row was left out.

docs/selection.md says when to use what.
"""
