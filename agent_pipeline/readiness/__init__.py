"""Readiness: what an agent's sessions are good for, before anything is written or trained.

The functions of the assets read, judge, curate and split the sessions in memory, so a report of
this room and a run of the pipeline agree. Commands that print a report do not belong here.
"""
