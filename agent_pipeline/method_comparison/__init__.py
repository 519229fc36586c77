"""Comparing training methods: which runs are needed, their results, and the report.

`plan` lists the training runs, `task` carries them out, `results` computes the differences, and
`report` writes them for people. No nightly run uses this room.
"""
