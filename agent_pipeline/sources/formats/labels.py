"""Verdicts in a file next to a store of the OpenAI Agents SDK, which stores no verdicts.

The file `x_labels.json` belongs to `x_sessions.db` and `x_traces.jsonl`. It is a list of
`{"session_id", "task_id", "trial"}` objects, each with a verdict field (`judgment`, `passed`,
`reward`, `score`, ...). If an id has several rows, the last row counts.
"""

from pathlib import Path

from agent_pipeline.errors import StoreError
from agent_pipeline.sources.base import add_note
from agent_pipeline.sources.formats.fields import plain_verdict
from agent_pipeline.sources.formats.record_files import records


def labels_beside(store: Path) -> list[Path]:
    """Return the file of labels next to a store as a list, which is empty if there is no file."""
    path = store.with_name(
        f"{store.stem.removesuffix('_sessions').removesuffix('_traces')}_labels.json"
    )
    return [path] if path.is_file() else []


def read_labels(paths: list[Path], notes: list[str]) -> dict[str, dict[str, object]]:
    """Return the verdict, task and trial of each session id in files of labels.

    Raises:
        StoreError: A file cannot be read. A store with lost verdicts must not look like a store
            without verdicts.
    """
    labels: dict[str, dict[str, object]] = {}
    for path in paths:
        strange = 0
        for _, record in records(path, notes):
            if not isinstance(record, dict) or not isinstance(record.get("session_id"), str):
                strange += 1
                continue
            score, judgment = plain_verdict(record)
            named = {
                name: str(record[name])
                for name in ("task_id", "trial")
                if isinstance(record.get(name), str | int)
            }
            labels[record["session_id"]] = {"score": score, "judgment": judgment, **named}
        if not labels:
            raise StoreError(
                f"{path} has no label with a session_id: correct the file, or remove it from the "
                "store's folder."
            )
        if strange:
            add_note(notes, f"{path}: {strange} labels have no session_id and were left out.")
    return labels
