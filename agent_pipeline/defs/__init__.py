"""Dagster objects, and nothing else: every asset reads its inputs, calls one domain function, and says what came of it.

What belongs here: assets by stage (`traces`, `datasets`, `coresets`, `models`, `exports`), their checks, partitions, resources, the job,
the schedule, the sensor, how results become metadata. What does not: any rule about sessions, rows or models.
"""

import warnings

import dagster as dg

# We pin Dagster's minor version, and tests cover the preview parts that we use (partitioned checks, observable sources).
warnings.filterwarnings("ignore", category=dg.BetaWarning)
warnings.filterwarnings("ignore", category=dg.PreviewWarning)
