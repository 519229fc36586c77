"""Choosing the rows worth training on: fewer rows, the same skill, and a reason beside every row that was left out.

`embeddings` places conversations in space and `vectors` keeps them in the lake; `dedup` finds what is said twice; `clusters` and `kcenter`
find what is dense, what is alone and what is far; `strategies` rank the rows of a `pool`, and `registry` knows them by name; `coresets`
applies one to a data set, and `coverage` says how well a choice stands for the rest. `replay` mixes rows of earlier nights into new ones.
docs/selection.md says when to use what.
"""
