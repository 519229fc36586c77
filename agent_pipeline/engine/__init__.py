"""Fast computation with torch: shared prefixes, attention, scoring, and generation.

This package changes when torch, transformers or the hardware changes. It computes the results of
the libraries faster, and each faster computation is compared with the library's own result.
Training objectives belong to `training`, and quality measures to `evaluation`.
"""
