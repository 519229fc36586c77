"""Conversations as tokens, and the loss mask that selects the tokens to train.

This package changes when the definition of what is trained changes. `loss_masks` tokenizes one
conversation, `truncation` makes a long conversation fit, and `encoding` does both for a data set.
"""
