"""Readers of the stores that agent frameworks write."""
