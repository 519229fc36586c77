"""Dagster objects, and nothing else: every asset reads its inputs, calls one domain function, and says what came of it.

What belongs here: assets by stage (`traces`, `datasets`, `coresets`, `models`, `exports`), their checks, partitions, resources, the job, the
schedule, the sensor, and how results become metadata. What does not: any rule about sessions, rows or models.
"""
