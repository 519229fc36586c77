"""Who judged the rows of a data set or of a training run: the counts that tell verified rows from unverified ones."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from agent_pipeline.judging.policy import VERIFIERS

JUDGE_COLUMNS = ("verdict_by", "rejected_verdict_by")
UNKNOWN = "unknown"
"""The judge of a row whose table was written before tables had the column `verdict_by`."""


def judges_of(batch: pa.RecordBatch) -> list[str]:
    """Return the judge of every verdict in a batch of rows; a pair has two verdicts."""
    columns = [name for name in JUDGE_COLUMNS if name in batch.schema.names]
    return [judge or UNKNOWN for name in columns for judge in batch[name].to_pylist()]


def verdicts_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the `verdict_counts` of rows of a data set."""
    return verdict_counts(
        Counter(
            row.get(name) or UNKNOWN
            for row in rows
            for name in JUDGE_COLUMNS
            if name in row or name == "verdict_by"
        )
    )


def verdict_counts(judges: Mapping[str, int], *earlier: Mapping[str, Any]) -> dict[str, Any]:
    """Count verdicts by whether somebody verified the session.

    Args:
        judges: How many verdicts each judge gave.
        earlier: Results of this function to add.

    Returns:
        `verdicts` (their number), `verified` (those by a person, a score or a judge), and `by`, the verdicts by judge.

    Example:
        >>> verdict_counts({"label": 2, "unverified": 3})
        {'verdicts': 5, 'verified': 2, 'by': {'label': 2, 'unverified': 3}}
    """
    by = Counter(judges)
    for counts in earlier:
        by.update(counts["by"])
    return {
        "verdicts": by.total(),
        "verified": sum(by[name] for name in VERIFIERS),
        "by": dict(sorted(by.items())),
    }


def verdict_sentence(counts: Mapping[str, Any]) -> str:
    """Return how many verdicts are verified, as a sentence without a full stop."""
    return (
        f"{counts['verified']:,} of {counts['verdicts']:,} verdicts by a person, a score or a judge"
    )


def unverified(counts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the origin of a model says of its verdicts: nothing if all of them are verified.

    Other verdicts make another model of the same rows, because its report says other counts. A model of verified rows keeps the
    identity that it had before there were counts.
    """
    return {} if counts["verified"] == counts["verdicts"] else {"verdicts": dict(counts)}
