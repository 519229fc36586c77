"""Lineage, forgetting and pruning.

Lineage tells which rows and models a session reached. Forgetting removes a session from all of
them. Pruning deletes models that nothing names.
"""
