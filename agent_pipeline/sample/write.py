"""The generation of the whole sample, which replaces an earlier sample in one step."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_pipeline.errors import SettingsError
from agent_pipeline.sample.cast import CAST, Agent
from agent_pipeline.sample.draw import DEFAULT_SEED
from agent_pipeline.sample.manifest import COMMAND, manifest, readme
from agent_pipeline.sample.record import record
from agent_pipeline.sample.store import write_sessions, write_verdicts


def write_sample(
    home: Path, seed: int = DEFAULT_SEED, cast: Sequence[Agent] = CAST
) -> dict[str, Any]:
    """Write the sample to `home` and return its manifest. An earlier sample in `home` is replaced.

    The sample is built in a folder next to `home` and then renamed, so that a reader sees either
    the complete old sample or the complete new sample. The worlds of `episodes` have only the tasks
    of `CAST`.

    Args:
        home: The folder of the sample.
        seed: The seed.
        cast: The agents.

    Raises:
        SettingsError: `home` contains something that is not a sample.
    """
    home = home.resolve()
    refuse_foreign(home)
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{home.name}-", dir=home.parent) as scratch:
        fresh, old = Path(scratch) / "fresh", Path(scratch) / "old"
        truth = build(fresh, seed, cast)
        if home.exists():
            home.rename(old)
        fresh.rename(home)
    return truth


def build(home: Path, seed: int, cast: Sequence[Agent]) -> dict[str, Any]:
    """Play, record and write all sessions into a new folder, and return the manifest."""
    sessions = {agent.partition: record(agent, seed) for agent in cast}
    for partition, recorded in sessions.items():
        write_sessions(home / "sessions" / partition / "sessions.db", recorded)
    for project in sorted({agent.project for agent in cast}):
        of_project = [
            s for agent in cast if agent.project == project for s in sessions[agent.partition]
        ]
        write_verdicts(home / "traces" / f"{project}.db", of_project)
    truth = manifest(sessions, seed)
    (home / "manifest.json").write_text(
        json.dumps(truth, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    (home / "README.md").write_text(readme(truth), encoding="utf-8")
    return truth


def refuse_foreign(home: Path) -> None:
    """Raise an error if a folder contains files that this program did not make."""
    if not home.exists() or (home.is_dir() and not any(home.iterdir())):
        return
    try:
        made_by = json.loads((home / "manifest.json").read_text(encoding="utf-8")).get("made_by")
    except (OSError, ValueError, AttributeError):
        made_by = None
    if made_by != COMMAND:
        raise SettingsError(
            f"{home} holds something other than a sample made by `{COMMAND}`: name an empty or a "
            "new folder."
        )
