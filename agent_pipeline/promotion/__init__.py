"""Whether a candidate replaces the champion, and what follows from a decision.

This room changes when other models may be served. `rules` has the rules, `decide` applies them to a
candidate, `ledger` records the decisions, `probation` watches a new champion, and `champions`
moves the pointer to the model that is served.
"""
