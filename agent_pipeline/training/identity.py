"""When two trainings would give the same adapter: one hash over everything that has an effect on it."""

from collections.abc import Iterable, Sequence
from typing import Any

from agent_pipeline.sessions.session import sha256_of
from agent_pipeline.training.base_model import BaseModel
from agent_pipeline.training.config import TrainingConfig


def adapter_identity(
    rows: Iterable[dict[str, Any]],
    base: BaseModel,
    jinja: str,
    config: TrainingConfig,
    replayed: Sequence[dict[str, Any]] = (),
    replay_ratio: float = 0.0,
) -> str:
    """sha256 (hex) of the rows' content in order, the base model's revision, the training template and the configuration; and of the rows
    that are replayed and their ratio, where there are any."""
    made_from = {"rows": _content(rows), "base": [base.name, base.revision], "template": jinja, "config": config.identity()}
    return sha256_of(made_from | ({"replayed": _content(replayed), "replay_ratio": replay_ratio} if replayed else {}))


def _content(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"messages": row["messages"], "tools": row.get("tools") or []} for row in rows]
