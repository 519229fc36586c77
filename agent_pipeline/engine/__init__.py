"""Fast computation with torch: shared prefixes, attention, scoring, and generation.

This room changes when torch, transformers or the hardware changes. It computes what the libraries
compute, faster, and each shortcut is compared with the library's own result. Training objectives
belong to `training`, and quality measures to `evaluation`.
"""
