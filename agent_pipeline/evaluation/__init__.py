"""Whether an adapter is better than what it was trained from, and by how much more than chance.

`samples` cuts held-out conversations into one question a turn, `generate` has a model answer them, `scoring` says what is
right about an answer, `bootstrap` how sure a difference is, and `evaluate` does it all for a base model and its adapter.
"""
