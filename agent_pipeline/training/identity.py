"""When two trainings would give the same adapter: everything that has an effect on it. And how a manifest names rows."""

from collections.abc import Iterable, Sequence
from typing import Any

from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.training.config import TrainingConfig
from agent_pipeline.training.rehearsal import QUESTIONS


def trained_from(
    rows: Iterable[dict[str, Any]],
    base: BaseModel,
    jinja: str,
    config: TrainingConfig,
    replayed: Sequence[dict[str, Any]] = (),
    replay_ratio: float = 0.0,
    rehearsal: float = 0.0,
) -> dict[str, Any]:
    """What an adapter is trained from: the base model and its revision, hashes (sha256) of the training template and of the rows' content
    in order, the configuration; and, where there are any, `replay`, the same of the rows that are replayed, and the `rehearsal`'s share and
    questions."""
    replay = {"content_sha256": _content(replayed), "ratio": replay_ratio}
    return {
        "base_model": base.name,
        "base_revision": base.revision,
        "template_sha256": hash_json(jinja),
        "config": config.identity(),
        "content_sha256": _content(rows),
        **({"replay": replay} if replayed else {}),
        **(
            {"rehearsal": {"ratio": rehearsal, "questions_sha256": hash_json(QUESTIONS)}}
            if rehearsal
            else {}
        ),
    }


def _content(rows: Iterable[dict[str, Any]]) -> str:
    return hash_json(
        [{"messages": row["messages"], "tools": row.get("tools") or []} for row in rows]
    )


def adapter_origin(
    rows: Sequence[dict[str, Any]],
    base: BaseModel,
    jinja: str,
    config: TrainingConfig,
    replayed: Sequence[dict[str, Any]],
    ratio: float,
    rehearsal: float = 0.0,
) -> dict[str, Any]:
    """What the manifest of an adapter in the lake says it is made from: `trained_from`, and which rows those are."""
    origin = trained_from(rows, base, jinja, config, replayed, ratio, rehearsal) | rows_made_from(
        [*rows, *replayed]
    )
    if replayed:
        origin["replay"] |= rows_made_from(replayed)
    return origin


def rows_made_from(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a manifest says about rows: their number, a hash, and every session's id."""
    names = sorted((row["row_id"], row["content_sha256"]) for row in rows)
    return {
        "rows": len(rows),
        "rows_sha256": hash_json(names),
        "sessions": sorted({row["session_id"] for row in rows}),
    }
