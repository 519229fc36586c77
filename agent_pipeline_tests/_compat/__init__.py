"""Hooks into other packages: what they need, and why they are still needed."""
