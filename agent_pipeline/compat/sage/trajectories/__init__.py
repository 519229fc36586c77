"""Runs of an agent: collect runs, keep the good runs, and train on them.

The method is FireAct (Chen et al. 2023). `trajectory` has the form of a run and its files,
`collector` runs agents, `endpoint_agent` is an agent behind an endpoint, and `conversion` filters
runs and makes training rows.
"""
