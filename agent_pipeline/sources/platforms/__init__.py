"""Readers of what tracing platforms export."""
