"""Whether an adapter is better than what it was trained from, and by how much more than chance.

`samples` cuts held-out conversations into one question a turn, `turns` has a model answer them (`greedy`, `generate`) and says how likely
it calls (`decision`), `scoring` and `calls` say what is right about an answer, `intervals` how sure a difference is, and `evaluate` does it
all for a base model and its adapter. `episodes` has a model do whole tasks in a world.
"""
