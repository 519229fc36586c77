"""Verdicts beside a store of the OpenAI Agents SDK, which keeps none: `x_labels.json` for `x_sessions.db` and `x_traces.jsonl`.

A list of `{"session_id", "task_id", "trial", and a verdict (judgment, passed, reward, score, ...)}`; of several rows for one id the last
wins.
"""

from pathlib import Path
from typing import Any

from agent_pipeline.errors import StoreError
from agent_pipeline.sources.base import add_note
from agent_pipeline.sources.formats.fields import said
from agent_pipeline.sources.formats.records import parsed, records

_ENDINGS = ("_sessions", "_traces")


def labels_file(store: Path) -> list[Path]:
    """The labels beside a file; none where there is no such file."""
    stem = store.stem
    for ending in _ENDINGS:
        stem = stem.removesuffix(ending)
    path = store.with_name(f"{stem}_labels.json")
    return [path] if path.is_file() else []


class Labels:
    """What a file of labels says of each session.

    Raises:
        StoreError: there is a file and it cannot be read: a store with lost verdicts must not pass for one without.
    """

    def __init__(self, paths: list[Path], notes: list[str]) -> None:
        self._labels: dict[str, dict[str, Any]] = {}
        for path in paths:
            strange = 0
            for text in records(path, notes):
                try:
                    record = parsed(text.raw)
                except ValueError:
                    record = None
                named = isinstance(record, dict) and isinstance(record.get("session_id"), str)
                strange += not named
                if named:
                    self._labels[record["session_id"]] = _label(record)
            if strange and not self._labels:
                raise StoreError(f"{path} holds no labels with a session_id: mend it, or take it from beside the store.")
            if strange:
                add_note(notes, f"{path}: {strange} labels have no session_id and were left out.")

    def of(self, session_id: str) -> dict[str, Any]:
        """Fields of `Session` for this id; empty where the file does not name it."""
        return self._labels.get(session_id, {})


def _label(record: dict[str, Any]) -> dict[str, Any]:
    score, judgment = said(record)
    plain = {name: str(record[name]) for name in ("task_id", "trial") if isinstance(record.get(name), str | int)}
    return {"score": score, "judgment": judgment, **plain}
