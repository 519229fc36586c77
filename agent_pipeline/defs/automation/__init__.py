"""Automation: nightly runs, discovery of agents, notifications, and the digest of a night."""
