"""Counts of verdicts by judge, which distinguish verified rows from unverified rows.

Reaching a verdict belongs to `judging`.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

import pyarrow as pa

from agent_pipeline.judging.verdict_policy import VERIFIERS

JUDGE_COLUMNS = ("verdict_by", "rejected_verdict_by")

UNKNOWN_JUDGE = "unknown"
"""Value of the judge for a row whose table was written before the column `verdict_by` existed."""


class VerdictCounts(TypedDict):
    """Counts of the verdicts in a dataset.

    They are the total number, the number of verified verdicts, and the number by judge.
    """

    verdicts: int
    verified: int
    by: dict[str, int]


def list_judges(batch: pa.RecordBatch) -> list[str]:
    """Return the judge of each row's verdict in a batch.

    A preference pair has two verdicts.
    """
    columns = [name for name in JUDGE_COLUMNS if name in batch.schema.names]
    return [judge or UNKNOWN_JUDGE for name in columns for judge in batch[name].to_pylist()]


def count_row_verdicts(rows: Iterable[Mapping[str, Any]]) -> VerdictCounts:
    """Count the verdicts of dataset rows (see `count_verdicts`)."""
    judges: Counter[str] = Counter()
    for row in rows:
        judges[row.get("verdict_by") or UNKNOWN_JUDGE] += 1
        if "rejected_verdict_by" in row:
            judges[row["rejected_verdict_by"] or UNKNOWN_JUDGE] += 1
    return count_verdicts(judges)


def count_verdicts(judges: Mapping[str, int], *earlier: Mapping[str, Any]) -> VerdictCounts:
    """Count verdicts, and how many of them are verified.

    Args:
        judges: Number of verdicts by judge.
        earlier: Results of this function to add.

    Returns:
        `verdicts` (their number), `verified` (the number of verdicts by a person, a score or a
        judge), and `by` (the number of verdicts by judge).

    Example:
        >>> count_verdicts({"label": 2, "unverified": 3})
        {'verdicts': 5, 'verified': 2, 'by': {'label': 2, 'unverified': 3}}
    """
    verdicts_by_judge = Counter(judges)
    for counts in earlier:
        verdicts_by_judge.update(counts["by"])
    return {
        "verdicts": verdicts_by_judge.total(),
        "verified": sum(verdicts_by_judge[judge] for judge in VERIFIERS),
        "by": dict(sorted(verdicts_by_judge.items())),
    }


def describe_verdicts(counts: Mapping[str, object]) -> str:
    """Return a sentence without a full stop that states how many verdicts are verified."""
    return (
        f"{counts['verified']:,} of {counts['verdicts']:,} verdicts by a person, a score or a judge"
    )


def describe_unverified(counts: Mapping[str, object]) -> dict[str, Any]:
    """Return the statement about unverified verdicts in a model's provenance.

    The part is empty if all verdicts are verified, so that a model of verified rows keeps the same
    identity. Otherwise, different verdicts on the same rows give a different model, because the
    model's report contains the counts.
    """
    if counts["verified"] == counts["verdicts"]:
        return {}
    return {"verdicts": dict(counts)}
