"""Trajectories (FireAct, Chen et al. 2023): run an agent on tasks, keep what went well, train on
it.

`model` is the form and its files, `collecting` runs agents, `endpoint` is an agent of its own,
`conversion` filters and makes rows.
"""
