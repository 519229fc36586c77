"""Choosing the rows worth training on: fewer rows, the same skill, and a reason beside every row that was left out.

`embeddings` places conversations in space, `clusters` finds what is dense and what is alone, `strategies` rank rows (random,
diversity, loss_topk, hybrid), `coresets` applies one of them to a data set, and `coverage` says how well a choice stands for the rest.
"""
