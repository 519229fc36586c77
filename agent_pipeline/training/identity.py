"""When two trainings would give the same adapter: one hash over everything that has an effect on it (03 §5.5)."""

from typing import Any

from agent_pipeline.traces.session import sha256_of
from agent_pipeline.training.base_model import BaseModel
from agent_pipeline.training.config import TrainingConfig


def adapter_identity(rows: list[dict[str, Any]], base: BaseModel, jinja: str, config: TrainingConfig) -> str:
    """sha256 (hex) of the rows' content in order, the base model's revision, the training template and the configuration."""
    content = [{"messages": row["messages"], "tools": row.get("tools") or []} for row in rows]
    return sha256_of(
        {"rows": content, "base": [base.name, base.revision], "template": jinja, "config": config.identity()},
    )
