"""The columns of every table, and the columns from which each column is derived, for Dagster's UI.

This module is data only, with one entry per table. Which rows a table has may depend on more than
its columns name (a kept session, the partner of a pair). `FROM_OUTSIDE` marks values that no table
contains: the store, and the partition's key.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import dagster as dg
import pyarrow as pa

from agent_pipeline.datasets.kto import KTO
from agent_pipeline.datasets.multi_task import MULTI_TASK
from agent_pipeline.datasets.preferences import PREFERENCES
from agent_pipeline.datasets.sft import SFT
from agent_pipeline.datasets.sharegpt import SHAREGPT
from agent_pipeline.defs.io_managers.parquet import COLUMN_LINEAGE, COLUMN_SCHEMA, column_schema
from agent_pipeline.evaluation.tape import TAPE, TAPE_TABLE
from agent_pipeline.selection.tables import CORESET
from agent_pipeline.selection.training_rule import TRAINED, TRAINED_TABLE
from agent_pipeline.sessions.tables import CURATED, JUDGED, SESSIONS

FROM_OUTSIDE: tuple[str, ...] = ()

Origins = Mapping[str, Sequence[str]]
"""The source columns (`asset.column`) of each column of a table."""


class Columns(NamedTuple):
    """The schema of a table, and the source columns of its columns."""

    schema: pa.Schema
    origins: Origins


def _same(asset: str, names: Sequence[str]) -> dict[str, Sequence[str]]:
    return {name: [f"{asset}.{name}"] for name in names}


def _of(asset: str, *names: str) -> list[str]:
    return [f"{asset}.{name}" for name in names]


def _of_both_splits(names: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return the source columns of a table that combines `sft_dataset` and `heldout_dataset`."""
    return {name: [f"sft_dataset.{name}", f"heldout_dataset.{name}"] for name in names}


_TOLD = _of(
    "sessions",
    "session_id",
    "judgment",
    "score",
    "scores",
    "attack_succeeded",
    "error",
    "messages",
    "tools",
    "context",
)
_DECIDING = (
    *(
        "session_id",
        "archived",
        "messages",
        "content_sha256",
        "created_at",
        "broken",
        "damage",
        "error",
        "attack_succeeded",
    ),
    *("verdict", "measures"),
)
_DECIDED = _of("judged_sessions", *_DECIDING)
_TEXT = _of("curated_sessions", "messages", "tools")
_SAID = _of("curated_sessions", "messages", "reasoning")
_TURNS = _of("curated_sessions", "turns")
_HASH = _of("curated_sessions", "content_sha256")
_TASK = _of("curated_sessions", "task_key", "session_id", "parent_session_id")
_ID = _of("curated_sessions", "session_id")
_PICKED = _of("sft_dataset", "row_id", "session_id", "messages", "tools", "score", "created_at")

TABLES: dict[str, Columns] = {
    "sessions": Columns(SESSIONS, dict.fromkeys(SESSIONS.names, FROM_OUTSIDE)),
    "judged_sessions": Columns(
        JUDGED,
        _same("sessions", SESSIONS.names) | dict.fromkeys(JUDGED.names[len(SESSIONS) :], _TOLD),
    ),
    "curated_sessions": Columns(
        CURATED,
        _same("judged_sessions", JUDGED.names)
        | {"content_sha256": _of("judged_sessions", "content_sha256", "messages", "tools")}
        | dict.fromkeys(CURATED.names[len(JUDGED) :], _DECIDED),
    ),
    **dict.fromkeys(
        ("sft_dataset", "heldout_dataset"),
        Columns(
            SFT,
            _same("curated_sessions", ["session_id", "content_sha256", "created_at"])
            | _same("curated_sessions", ["verdict_by", "served_model"])
            | {
                "row_id": [*_ID, *_TEXT, *_TURNS],
                "task_key": _TASK,
                "split": _TASK,
                "messages": [*_SAID, *_of("curated_sessions", "tools"), *_TURNS],
            }
            | {
                "tools": [*_TEXT, *_TURNS],
                "turn_classes": [*_TEXT, *_TURNS],
            }
            | {"score": _of("curated_sessions", "verdict_score")},
        ),
    ),
    "preference_dataset": Columns(
        PREFERENCES,
        {
            **dict.fromkeys(("row_id", "session_id", "rejected_session_id"), _ID),
            **dict.fromkeys(("content_sha256", "rejected_content_sha256"), _HASH),
            **dict.fromkeys(("case_id", "task_key", "split"), _TASK),
            **dict.fromkeys(("prompt", "chosen", "rejected"), _SAID),
            "margin": _of("curated_sessions", "verdict_score"),
            "tools": _of("curated_sessions", "tools"),
            **dict.fromkeys(
                ("verdict_by", "rejected_verdict_by"), _of("curated_sessions", "verdict_by")
            ),
            "served_model": _of("curated_sessions", "served_model"),
        },
    ),
    "kto_dataset": Columns(
        KTO,
        _same("curated_sessions", ["session_id", "content_sha256", "tools", "verdict_by"])
        | _same("curated_sessions", ["served_model"])
        | {
            "row_id": _ID,
            "task_key": _TASK,
            "split": _TASK,
            "label": _of("curated_sessions", "kept"),
        }
        | dict.fromkeys(("prompt", "completion"), _SAID),
    ),
    "sharegpt_dataset": Columns(
        SHAREGPT,
        _of_both_splits([name for name in SHAREGPT.names if name != "conversations"])
        | {"conversations": _of_both_splits(["messages"])["messages"]},
    ),
    TAPE_TABLE: Columns(
        TAPE,
        _same("judged_sessions", ["session_id", "verdict"])
        | {
            "task_key": _of("judged_sessions", "task_key", "session_id", "parent_session_id"),
            "split": _of("judged_sessions", "task_key", "session_id", "parent_session_id"),
        }
        | dict.fromkeys(
            ("step", "step_kind", "tool", "failed", "text", "system"),
            _of("judged_sessions", "messages"),
        )
        | dict.fromkeys(
            ("arguments", "writes_before", "writes", "effect_reason"),
            _of("judged_sessions", "messages", "tools"),
        ),
    ),
    TRAINED_TABLE: Columns(
        TRAINED,
        _same("curated_sessions", ["session_id", "content_sha256", "use"])
        | {"verdict_sha256": _of("curated_sessions", "verdict", "use", "turns")},
    ),
    "sft_coreset": Columns(
        CORESET,
        _same("sft_dataset", ["row_id", "session_id", "content_sha256", "task_key"])
        | dict.fromkeys(("chosen", "rank", "score", "reason"), _PICKED)
        | dict.fromkeys(
            ("duplicate_of", "similarity"),
            _of("sft_dataset", "row_id", "messages", "score", "created_at"),
        ),
    ),
    "replay_buffer": Columns(SFT, _same("sft_dataset", SFT.names)),
    "multi_task_dataset": Columns(
        MULTI_TASK,
        _of_both_splits(SFT.names) | {"project": FROM_OUTSIDE, "agent": FROM_OUTSIDE},
    ),
}


def with_columns(spec: dg.AssetSpec) -> dg.AssetSpec:
    """Add the columns to the spec of a table's asset. Return any other spec unchanged."""
    table = TABLES.get(spec.key.path[-1])
    if table is None:
        return spec
    deps = {
        name: [
            dg.TableColumnDep(
                asset_key=dg.AssetKey([*spec.key.path[:-1], asset]), column_name=column
            )
            for asset, _, column in (origin.partition(".") for origin in origins)
        ]
        for name, origins in table.origins.items()
    }
    return spec.merge_attributes(
        metadata={
            COLUMN_SCHEMA: column_schema(table.schema),
            COLUMN_LINEAGE: dg.TableColumnLineage(deps),
        }
    )
