"""Lineage and forgetting: which rows and models a session reached, and how it is removed from all of them."""
