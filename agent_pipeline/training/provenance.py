"""The inputs of a training run, and its provenance: everything that determines the trained adapter.

Two runs with one provenance give one adapter. The hash of the provenance is therefore the identity
of the run: its checkpoints, its report and the artifact in the lake are found by it. How the inputs
are trained on belongs to `sft` and `further_steps`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import ChatRenderer, load_renderer
from agent_pipeline.sessions.session import encode_tools, hash_json
from agent_pipeline.tokenization.length_check import read_context_length
from agent_pipeline.training.config import FurtherTraining, TrainingConfig
from agent_pipeline.training.rehearsal import QUESTIONS
from agent_pipeline.training.size_defaults import limit_length, resolve_size_defaults

Row: TypeAlias = DatasetRow
"""A row of a dataset, as stored in the lake."""

Provenance = dict[str, Any]
"""The inputs that an artifact was made from, as JSON. The keys and values enter hashes."""

_FURTHER_COLUMNS = (
    "row_id",
    "messages",
    "prompt",
    "chosen",
    "rejected",
    "completion",
    "label",
    "tools",
)
"""The dataset columns that a step after SFT reads."""


@dataclass(frozen=True)
class SftInput:
    """All inputs that determine the adapter that imitation learning trains.

    Attributes:
        rows: SFT rows of the split `train`, in order.
        base: The base model.
        config: The options.
        replayed: Rows of earlier nights. Some are mixed in, evenly.
        replay_ratio: Maximum share of replayed rows in all rows that are trained on.
        rehearsal: Share of the base model's own answers to plain questions.
    """

    rows: Sequence[Row]
    base: BaseModel
    config: TrainingConfig
    replayed: Sequence[Row] = ()
    replay_ratio: float = 0.0
    rehearsal: float = 0.0

    @cached_property
    def renderer(self) -> ChatRenderer:
        """Return the renderer of the base model, with the chat template that renders the rows."""
        return load_renderer(self.base.path, self.base.trust_remote_code)

    @cached_property
    def trained_from(self) -> Provenance:
        """Return the provenance without the ids of the rows.

        It holds hashes (sha256) of the template and of the rows' content in order. Replay and
        rehearsal are named only if there are any.
        """
        provenance: Provenance = {
            "base_model": self.base.name,
            "base_revision": self.base.revision,
            "template_sha256": hash_json(self.renderer.template.jinja),
            "config": self.config.identity(),
            "content_sha256": hash_sft_rows(self.rows),
        }
        if self.replayed:
            provenance["replay"] = {
                "content_sha256": hash_sft_rows(self.replayed),
                "ratio": self.replay_ratio,
            }
        if self.rehearsal:
            provenance["rehearsal"] = {
                "ratio": self.rehearsal,
                "questions_sha256": hash_json(QUESTIONS),
            }
        return provenance

    @cached_property
    def identity(self) -> str:
        """Return the identity hash of the training run."""
        return hash_json(self.trained_from)

    def made_from(self) -> Provenance:
        """Return the provenance for the manifest in the lake, including the ids of the rows."""
        provenance = self.trained_from | name_rows([*self.rows, *self.replayed])
        if self.replayed:
            provenance["replay"] = provenance["replay"] | name_rows(self.replayed)
        return provenance


@dataclass(frozen=True)
class FurtherInput:
    """All inputs that determine the adapter that a step after SFT trains.

    Attributes:
        method: The step: sdft, distill, dpo, kto or grpo.
        rows: Rows of the split `train` of the step's data set.
        base: The base model.
        adapter_dir: The adapter that training starts from.
        options: The options. Options that depend on the size of the base model are filled in
            (`config`).
        reference: The identity of the adapter in `adapter_dir`.
        select: SFT rows of the split `select`, on which the kinds of decision are measured.
        details: What else the method names in its provenance, such as a world or a teacher.
    """

    method: str
    rows: Sequence[Row]
    base: BaseModel
    adapter_dir: Path
    options: FurtherTraining
    reference: str = ""
    select: Sequence[Row] = ()
    details: Provenance = field(default_factory=dict)

    @cached_property
    def config(self) -> Any:
        """Return the options, including the defaults that depend on the size of the base model.

        A `max_length` above the context of the base model becomes the context.
        """
        values = resolve_size_defaults(self.options.model_dump(), self.method, self.base)
        return type(self.options)(**limit_length(values, read_context_length(self.base.path)))

    @cached_property
    def made_from(self) -> Provenance:
        """Return the provenance: the adapter that training starts from, the rows, the options."""
        session_ids = {
            row[name]
            for row in self.rows
            for name in ("session_id", "rejected_session_id")
            if name in row
        }
        return {
            "method": self.method,
            "base_model": self.base.name,
            "base_revision": self.base.revision,
            "reference": self.reference,
            "config": self.config.identity(),
            "content_sha256": _hash_columns(self.rows, _FURTHER_COLUMNS),
            "select_sha256": _hash_columns(self.select, _FURTHER_COLUMNS),
            "rows": len(self.rows),
            "sessions": sorted(session_ids),
            **self.details,
        }

    @cached_property
    def identity(self) -> str:
        """Return the identity hash of the training run."""
        return hash_json(self.made_from)


def hash_sft_rows(rows: Iterable[Row]) -> str:
    """Return a hash of the columns that SFT reads from the rows, in order."""
    return hash_json(
        [
            {"messages": row["messages"], "tools": _tools_text(row.get("tools") or [])}
            for row in rows
        ]
    )


def _hash_columns(rows: Iterable[Mapping[str, object]], columns: Sequence[str]) -> str:
    return hash_json(
        [
            {
                name: _tools_text(row[name]) if name == "tools" else row[name]
                for name in columns
                if name in row
            }
            for row in rows
        ]
    )


def _tools_text(tools: object) -> str:
    """Return tools as text in which keys keep their order, because prompts show this order."""
    return encode_tools(tools).decode()


def name_rows(rows: Sequence[Row]) -> Provenance:
    """Return the description of rows for a manifest: their number, hash, and session ids."""
    names = sorted((row["row_id"], row["content_sha256"]) for row in rows)
    return {
        "rows": len(rows),
        "rows_sha256": hash_json(names),
        "sessions": sorted({row["session_id"] for row in rows}),
    }
