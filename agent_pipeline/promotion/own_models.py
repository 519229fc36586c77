"""The detection of sessions in which a model of this lake answered.

A served model's sessions are logged like any other sessions. They must not silently train the next
model.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agent_pipeline.errors import ExportError
from agent_pipeline.evaluation.episodes import PLAYED
from agent_pipeline.export.ollama import model_name
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.ledger import EXPORT
from agent_pipeline.sessions.session import list_answering_models
from agent_pipeline.storage.lake import Lake
from agent_pipeline.training.chain import STEPS, name_adapter_asset

PLAYED_MODELS = {"champion", "gguf", "adapter"}
"""The model names in sessions that `agent-pipeline play` writes for the lake's own models."""
_IDENTITY = re.compile(r"(?<![0-9a-f])[0-9a-f]{16}")
_TAG = re.compile(r":[\w.-]+$")


@dataclass(frozen=True)
class ServedName:
    """A name under which servers offer the champion of a partition.

    Attributes:
        key: The partition.
        first_export: The time of the partition's first export.
    """

    key: PartitionKey
    first_export: datetime | None


class OwnModels:
    """The names under which servers offer the models of a lake.

    If several models answered in a session, it counts as our own session if at least one of them is
    our own. A model is our own in any of these cases:

    - Its name is, or ends with, the name of a partition that has an export (`shop/support`, or
      `openai/shop/support` behind a gateway).
    - Its name is a partition's name in Ollama (`shop-support:latest`), or a repository on the hub.
    - Its name contains the first 16 digits of the identity of an export or adapter, as names of
      GGUF files do.
    """

    def __init__(
        self, lake: Lake, names: Mapping[PartitionKey, tuple[str, str]] | None = None
    ) -> None:
        """Read the history of every partition that has an export.

        Args:
            lake: The lake.
            names: By partition, the settings `serving.name` and `serving.hub`.
        """
        self._served_by_name: dict[str, ServedName] = {}
        self._partitions_by_identity: dict[str, PartitionKey] = {}
        for key in lake.partitions("models", EXPORT):
            history = lake.history(EXPORT, key)
            export_times = [datetime.fromisoformat(entry.when) for entry in history if entry.when]
            first_export = min(export_times, default=None)
            for name in (str(key), _ollama_name(key), *(names or {}).get(key, ())):
                if name:
                    self._served_by_name[name.lower()] = ServedName(key, first_export)
            for asset in (EXPORT, *map(name_adapter_asset, STEPS)):
                moves = history if asset == EXPORT else lake.history(asset, key)
                for entry in moves:
                    if entry.latest:
                        self._partitions_by_identity[entry.latest[:16]] = key

    def made(self, row: Mapping[str, Any]) -> bool:
        """Return whether one of the lake's own models answered in a session.

        If the session is older than the first export of the partition with this name, another model
        with the same name answered.

        Args:
            row: The session's `model_id`, `context`, `session_id` and `created_at`.
        """
        models = [model.strip().lower() for model in list_answering_models(row)]
        return any(_is_played(model, row) or self._find_owner(model, row) for model in models)

    def find_partition(self, row: Mapping[str, Any]) -> PartitionKey | None:
        """Return the partition whose model answered in a session, or None.

        The models of other stores, and the models of `agent-pipeline play`, have no partition.

        Args:
            row: As for `made`.
        """
        models = [model.strip().lower() for model in list_answering_models(row)]
        owners = (self._find_owner(model, row) for model in models)
        return next((owner for owner in owners if owner), None)

    def has_other_models(self, row: Mapping[str, Any]) -> bool:
        """Return whether a model that is not from this lake answered in a session too."""
        models = [model.strip().lower() for model in list_answering_models(row)]
        return any(
            not _is_played(model, row) and self._find_owner(model, row) is None for model in models
        )

    def _find_owner(self, model: str, row: Mapping[str, Any]) -> PartitionKey | None:
        """Return the partition that has a model that answered in a session, or None."""
        for identity in find_identities(model):
            if identity in self._partitions_by_identity:
                return self._partitions_by_identity[identity]
        created = row["created_at"]
        for name, served in self._served_by_name.items():
            if not _is_called(model, name):
                continue
            # A session without a time may be from our model.
            if created is None or served.first_export is None or created >= served.first_export:
                return served.key
        return None


def find_identities(model: str) -> list[str]:
    """Return the beginnings of identities of exports or adapters in the name of a model."""
    return _IDENTITY.findall(model.lower())


def _is_played(model: str, row: Mapping[str, Any]) -> bool:
    """Return whether `agent-pipeline play` wrote a session with one of the lake's models."""
    is_played_model = model in PLAYED_MODELS or model.endswith(".gguf")
    return is_played_model and str(row["session_id"]).startswith(PLAYED)


def _is_called(model: str, name: str) -> bool:
    """Return whether a model's name is `name`, perhaps with a prefix and an Ollama tag."""
    untagged = _TAG.sub("", model)
    return any(text == name or text.endswith(f"/{name}") for text in (model, untagged))


def _ollama_name(key: PartitionKey) -> str:
    """Return a partition's name in Ollama, or an empty text if Ollama does not accept the name."""
    try:
        return model_name(*key)
    except ExportError:
        return ""
