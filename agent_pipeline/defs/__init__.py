"""Dagster objects: each asset reads its inputs, calls one function, and reports metadata.

What belongs here: assets by stage, their checks, partitions, resources, jobs, the schedule, the
sensors, and how results become metadata. What does not belong here: any rule about sessions, rows
or models.
"""

import warnings

import dagster as dg

# We pin Dagster's minor version, and tests cover the preview parts that we use (partitioned checks,
# observable sources).
warnings.filterwarnings("ignore", category=dg.BetaWarning)
warnings.filterwarnings("ignore", category=dg.PreviewWarning)
