"""The guards on how much a store grew or lost since the last run."""

import json
from pathlib import Path

import pytest

from agent_pipeline.errors import DamageError
from agent_pipeline.ingestion.growth import GrowthError
from agent_pipeline.ingestion.ingestion import ingest
from agent_pipeline.ingestion.reading import ReadingOptions
from agent_pipeline.ingestion.volume import VolumeError
from agent_pipeline.sources.opening import open_source
from agent_pipeline.storage.lake import Lake

OPTIONS = ReadingOptions()


def store(path: Path, sessions: dict[str, str], day: str = "2026-01-01") -> Path:
    """A plain store: the text of each session's answer by its id."""
    messages = {
        name: [
            {"role": "user", "content": f"Where is order {name}?"},
            {"role": "assistant", "content": text},
        ]
        for name, text in sessions.items()
    }
    rows = [
        {"id": name, "messages": each, "reward": 1, "created_at": f"{day}T10:00:00Z"}
        for name, each in messages.items()
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def ids(count: int, prefix: str = "s") -> dict[str, str]:
    return {f"{prefix}{number:04}": f"It is on shelf {number}." for number in range(count)}


def grown(folder: Path, before: int, new: int, allowed: float = 1.0) -> int:
    """Ingest a store, then the same one with `new` more sessions; return the rows of the second table."""
    lake, path = Lake(str(folder / "lake")), folder / "shop.jsonl"
    source = open_source(store(path, ids(before)))
    key = source.partitions()[0]
    ingest(source, key, OPTIONS, lake).table.commit()
    return ingest(
        open_source(store(path, ids(before) | ids(new, "n"))), key, OPTIONS, lake, 0.5, allowed
    ).table.rows


@pytest.mark.parametrize(("before", "new"), [(100, 4), (100, 100), (20, 30), (9, 500)])
def test_usual_growth(tmp_path: Path, before: int, new: int) -> None:
    """A store may double, and a young or small one may grow at once."""
    assert grown(tmp_path, before, new) == before + new


@pytest.mark.parametrize(("before", "new"), [(100, 200), (20, 40), (60, 61)])
def test_sudden_growth(tmp_path: Path, before: int, new: int) -> None:
    """A store of which two thirds were planted overnight replaces no table."""
    with pytest.raises(GrowthError) as caught:
        grown(tmp_path, before, new)
    growth = caught.value.growth
    assert (growth.before, growth.new) == (before, new)
    assert not list((tmp_path / "lake").rglob("sessions/**/.*")), "nothing is left beside the table"


def test_accepted_growth(tmp_path: Path) -> None:
    """A person who has looked at the new sessions accepts them with one setting."""
    assert grown(tmp_path, 20, 400, 0.0) == 420


def test_volume_of_a_damaged_table(tmp_path: Path) -> None:
    """If the last table of sessions is damaged, the table that was made of it still guards."""
    lake, path = Lake(str(tmp_path / "lake")), tmp_path / "shop.jsonl"
    source = open_source(store(path, ids(40)))
    key = source.partitions()[0]
    ingest(source, key, OPTIONS, lake).table.commit()
    table = Path(lake.table("sessions", key).path)
    judged = Path(lake.table("judged_sessions", key).path)
    judged.parent.mkdir(parents=True)
    judged.write_bytes(table.read_bytes())
    table.write_bytes(table.read_bytes()[:-100])
    store(path, ids(10))
    with pytest.raises(VolumeError):
        ingest(open_source(path), key, OPTIONS, lake, 0.5)
    judged.unlink()
    with pytest.raises(DamageError):
        ingest(open_source(path), key, OPTIONS, lake, 0.5)
    assert ingest(open_source(path), key, OPTIONS, lake, 0).table.rows == 10
