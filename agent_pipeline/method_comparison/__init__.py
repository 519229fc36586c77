"""The comparison of training methods: the planned training runs, their results, and the report.

`plan` lists the training runs, `task` carries them out, `results` computes the differences, and
`report` writes them for people. Nightly runs do not use this package.
"""
