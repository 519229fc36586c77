"""Which sessions a model of this lake made: what is served comes back as sessions, and must not silently train the next model."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from agent_pipeline.errors import ExportError
from agent_pipeline.evaluation.episodes import PLAYED
from agent_pipeline.export.ollama import model_name
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.ledger import EXPORT
from agent_pipeline.storage.lake import Lake
from agent_pipeline.training.chain import STEPS, name_adapter_asset

PLAYED_MODELS = {"champion", "gguf", "adapter"}
"""What `agent-pipeline play` writes as the model of a session if one of the lake's own models played."""
_IDENTITY = re.compile(r"(?<![0-9a-f])[0-9a-f]{16}")
_TAG = re.compile(r":[\w.-]+$")


class OwnModels:
    """The names under which servers know the models of a lake.

    A session's model is one of ours if its name is, or ends with, the name of a partition that has an export (`shop/support`, or
    `openai/shop/support` behind a gateway), its name in Ollama (`shop-support:latest`), its repository on the hub, or if it holds the
    first 16 digits of an export or adapter, as the names of GGUF files do.
    """

    def __init__(
        self, lake: Lake, names: Mapping[PartitionKey, tuple[str, str]] | None = None
    ) -> None:
        """Read the history of every partition that has an export.

        Args:
            names: by partition, the settings `serving.name` and `serving.hub`.
        """
        self._names: dict[str, datetime | None] = {}
        self._identities: set[str] = set()
        for key in lake.partitions("models", EXPORT):
            history = lake.history(EXPORT, key)
            began = min(
                (datetime.fromisoformat(entry.when) for entry in history if entry.when),
                default=None,
            )
            for name in (str(key), _ollama_name(key), *(names or {}).get(key, ())):
                if name:
                    self._names[name.lower()] = began
            for asset in (EXPORT, *map(name_adapter_asset, STEPS)):
                moves = history if asset == EXPORT else lake.history(asset, key)
                self._identities |= {entry.latest[:16] for entry in moves if entry.latest}

    def made(self, row: Mapping[str, Any]) -> bool:
        """Return whether one of the models made a session, by its `model_id`, `session_id` and `created_at`.

        A session that is older than the first export of the name's partition was made by another model of this name.
        """
        model = (row["model_id"] or "").strip().lower()
        if not model:
            return False
        if any(found in self._identities for found in _IDENTITY.findall(model)):
            return True
        if row["session_id"].startswith(PLAYED) and (
            model in PLAYED_MODELS or model.endswith(".gguf")
        ):
            return True
        untagged = _TAG.sub("", model)
        for name, began in self._names.items():
            if any(said == name or said.endswith(f"/{name}") for said in (model, untagged)):
                created = row["created_at"]
                if created is None or began is None or created >= began:
                    return True
        return False


def _ollama_name(key: PartitionKey) -> str:
    try:
        return model_name(*key)
    except ExportError:  # a partition without a name that Ollama takes
        return ""
