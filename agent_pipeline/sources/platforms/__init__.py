"""Readers of the exports of tracing platforms."""
