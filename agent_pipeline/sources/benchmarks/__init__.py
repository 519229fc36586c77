"""Readers of benchmark and evaluation runs."""
