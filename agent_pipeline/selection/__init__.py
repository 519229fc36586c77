"""Choosing the rows worth training on: fewer rows, the same skill, and columns that say why every other row was left out.

`candidates` holds what selection knows of rows, `pool` what a strategy is given and gives back, `strategies` rank the rows of a pool, and
`coresets` applies one to a data set; `embeddings` places conversations in space and `vectors` keeps them in the lake; `clusters` finds what
is dense, alone and far, and how well a choice stands for all rows, and `duplicates` what is said twice. `buffer` chooses what is
remembered of earlier nights and what is replayed, and `replay` does so with the lake's tables, which `tables` reads. docs/selection.md says
when to use what.
"""
