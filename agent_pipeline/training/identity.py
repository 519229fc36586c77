"""When two trainings would give the same adapter: everything that has an effect on it."""

from collections.abc import Iterable, Sequence
from typing import Any

from agent_pipeline.sessions.session import sha256_of
from agent_pipeline.training.base_model import BaseModel
from agent_pipeline.training.config import TrainingConfig


def trained_from(
    rows: Iterable[dict[str, Any]],
    base: BaseModel,
    jinja: str,
    config: TrainingConfig,
    replayed: Sequence[dict[str, Any]] = (),
    replay_ratio: float = 0.0,
) -> dict[str, Any]:
    """What an adapter is trained from: the base model and its revision, hashes (sha256) of the training template and of the rows' content
    in order, the configuration; and `replay`, the same of the rows that are replayed, where there are any."""
    replay = {"content_sha256": _content(replayed), "ratio": replay_ratio}
    return {
        "base_model": base.name,
        "base_revision": base.revision,
        "template_sha256": sha256_of(jinja),
        "config": config.identity(),
        "content_sha256": _content(rows),
        **({"replay": replay} if replayed else {}),
    }


def _content(rows: Iterable[dict[str, Any]]) -> str:
    return sha256_of([{"messages": row["messages"], "tools": row.get("tools") or []} for row in rows])
