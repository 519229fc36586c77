"""Readers of the session stores of agent frameworks."""
