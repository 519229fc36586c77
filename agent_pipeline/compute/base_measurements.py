"""Measurements of the base model that are kept in the lake and reused by later nights.

Each measurement is an artifact `base_measurements` of the agent's partition. Each artifact that
uses a measurement names it as a parent, so `prune` keeps the measurement as long as the artifact.
`forget` deletes a measurement that was made on a forgotten session. What is measured belongs to
`evaluation` and `promotion`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from agent_pipeline.compute.artifact_cache import MadeFrom, Recipe, build
from agent_pipeline.compute.params import TaskParams
from agent_pipeline.compute.registry import Task
from agent_pipeline.errors import DataError
from agent_pipeline.evaluation.base_measurements import BASE_MEASUREMENTS, Measured
from agent_pipeline.evaluation.episodes import Episode
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.structs import convert_value, decode_json

FILE = "measurement.json"
"""Name of the file that holds a measurement."""

_TOKENIZER_FILES = (
    "tokenizer",
    "chat_template",
    "special_tokens",
    "added_tokens",
    "vocab",
    "merges",
)
"""Beginnings of the names of files that decide which tokens a model reads."""


@dataclass
class KeptMeasurements:
    """The measurements of a base model that a task makes or reuses.

    Attributes:
        task: The task. Its version and its libraries are a part of each identity.
        params: The parameters of the task.
        measures: The name of what is measured.
        made_from: Further inputs, with the sessions that are measured on.
        device: The number format of the base model.
        used: The artifacts that were made or reused.
    """

    task: Task[Any]
    params: TaskParams
    measures: str
    made_from: MadeFrom
    device: str
    used: list[Artifact] = field(default_factory=list)

    def measure(
        self, fingerprint: str, result_type: type[Measured], compute: Callable[[], Measured]
    ) -> Measured:
        """Return a stored measurement, or compute and store it.

        A measurement that JSON cannot hold, such as a loss that is not a number, is not reused.

        Args:
            fingerprint: A hash of everything that affects the measurement, but for the device, the
                task's version and its libraries.
            result_type: The type of the measurement.
            compute: Measures the base model.
        """
        computed: list[Measured] = []

        def write(folder: Path) -> dict[str, Any]:
            result = compute()
            computed.append(result)
            content = msgspec.json.encode(result)
            (folder / FILE).write_bytes(content)
            return {"ok": _decode(content, result_type) == result}

        made_from = self.made_from | {
            "measures": self.measures,
            "fingerprint": fingerprint,
            "device": self.device,
        }
        built = build(self.task, self.params, Recipe(BASE_MEASUREMENTS, made_from, write))
        lake, key = self.params.open_lake(), self.params.key
        artifact = lake.find(BASE_MEASUREMENTS, key, built["identity"])
        if artifact is not None:
            self.used.append(artifact)
        if computed:
            return computed[0]
        if artifact is None:
            raise DataError(
                f"The measurement {built['identity'][:16]} of the base model of {key} was deleted "
                "while it was being read: start the run again."
            )
        return decode_json(artifact.read(FILE), result_type)


def _decode(content: bytes, result_type: type[Measured]) -> Measured | None:
    try:
        return decode_json(content, result_type)
    except msgspec.ValidationError:
        return None


def keep_episodes(
    kept: KeptMeasurements,
    base: BaseModel,
    adapter: Artifact,
    played: Mapping[str, object],
    play: Callable[[], list[Episode]],
) -> list[Episode]:
    """Return the episodes of the base model, stored or played now.

    Args:
        kept: The store.
        base: The base model.
        adapter: The adapter whose tokenizer and chat template the base model reads with.
        played: The tasks, the world and the options of the episodes.
        play: Plays the episodes.
    """
    tokenizer = {
        name: entry["sha256"]
        for name, entry in adapter.manifest["files"].items()
        if name.startswith(_TOKENIZER_FILES)
    }
    # A world may read any value of a row, and not every value is JSON.
    text = json.dumps([base.name, base.revision, tokenizer, played], sort_keys=True, default=str)

    def play_entries() -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = msgspec.to_builtins(play())
        return entries

    entries = kept.measure(hash_json(text), list[dict[str, Any]], play_entries)
    return [_read_episode(entry) for entry in entries]


def _read_episode(entry: Mapping[str, Any]) -> Episode:
    """Return an episode from its JSON form. Messages and tools keep keys that their types lack."""
    kept_whole = {name: entry[name] for name in ("messages", "tools")}
    episode = convert_value({**entry, "messages": [], "tools": []}, Episode)
    return replace(episode, **kept_whole)


def sessions_of_tasks(tasks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the ids of the sessions that tasks come from. Fresh tasks come from no session."""
    return sorted({task["session_id"] for task in tasks if task.get("session_id")})
