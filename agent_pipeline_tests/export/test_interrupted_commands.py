"""Commands that are killed at every point, and then repeated: what is served, the pointer and the history agree."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_pipeline.cli import champions as commands
from agent_pipeline.cli import models
from agent_pipeline.export.serving_folder import (
    PRESET,
    RECORD,
    partition_folder,
    read_folder,
    serving_root,
)
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.champions import (
    complete_move,
    promote,
    serve_champion,
    serving_difference,
)
from agent_pipeline.promotion.ledger import EXPORT, open_completed_moves
from agent_pipeline.storage.lake import Artifact, Lake
from agent_pipeline_tests.interruptions import STEP, kill_points, run_killed
from agent_pipeline_tests.lakes import artifact

KEY = PartitionKey("shop", "support")


def export(lake: Lake, name: str, with_adapter: bool) -> Artifact:
    """An export that can be served; with its adapter's files for vLLM if `with_adapter`."""
    made_from = {"base_model": "b", "base_revision": "1", "name": name}
    weights = {
        "adapter_config.json": "{}",
        "adapter_model.safetensors": name,
        "chat_template.jinja": name,
    }
    adapter = artifact(lake, "sft_adapter", KEY, made_from, weights if with_adapter else {})
    files = {"Modelfile": "FROM ./model-f16.gguf\nPARAMETER num_ctx 2048\n", "model-f16.gguf": name}
    report = {"ollama": {"gguf": "model-f16.gguf", "num_ctx": 2048}}
    return artifact(lake, EXPORT, KEY, {"adapter": adapter.identity}, files, report)


class Champions:
    """A lake with three exports, of which the second is the champion, was the successor of the first, and is served."""

    def __init__(self, folder: Path) -> None:
        self.lake = Lake(str(folder))
        self.exports = [
            export(self.lake, name, name != "third") for name in ("first", "second", "third")
        ]
        for promoted in self.exports[:2]:
            promote(self.lake, KEY, promoted.identity)
            serve_champion(self.lake, KEY)
            complete_move(self.lake, KEY)


COMMANDS: dict[str, tuple[Callable[[], None], int]] = {
    "rollback": (lambda: commands.rollback(str(KEY), None, ""), 0),
    "rollback --to": (lambda: commands.rollback(str(KEY), 5, ""), 0),
    "promote": (lambda: commands.promote(str(KEY), "", ""), 2),
    "models list": (lambda: models.list_models(), 0),
}
"""A command, and the number of the export that is the champion after it. `models list` runs after a rollback that only moved the pointer."""


@pytest.mark.parametrize("name", COMMANDS)
def test_command_killed_at_every_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A killed rollback left the bad model served, and repeating it rolled back the good one."""
    command, expected = COMMANDS[name]
    points = 0
    for event_number in kill_points():
        folder = tmp_path / str(event_number)
        monkeypatch.setenv("AGENT_PIPELINE_LAKE", str(folder))
        given = Champions(folder)
        lake, before = given.lake, len(given.lake.history(EXPORT, KEY))
        to = next(entry.generation for entry in lake.history(EXPORT, KEY) if entry.champion)
        if name == "models list":
            lake.set_champion(given.exports[0], command="rollback")
        if name == "rollback --to":
            command = lambda to=to: commands.rollback(str(KEY), to, "")  # noqa: E731
        if not run_killed(command, event_number):
            break
        points += 1
        completed = open_completed_moves(lake, KEY).records()[-1].generation > before
        if not completed:  # otherwise the killed command had printed its last line
            command()
        champion = given.exports[expected].identity
        assert lake.pointers(EXPORT, KEY).champion == champion, event_number
        assert read_folder(lake, KEY).identity == champion[:16] and not serving_difference(
            lake, KEY
        ), event_number
        moves = [entry for entry in lake.history(EXPORT, KEY)[before:] if entry.moved == "champion"]
        assert [entry.champion for entry in moves] == [champion], event_number
        serving = partition_folder(lake, KEY)
        weights = serving / "adapter_model.safetensors"
        assert [path.name for path in serving.glob(".*")] == []
        assert weights.exists() == (expected != 2) and (
            not weights.exists() or weights.read_text() == ["first", "second"][expected]
        )
        section = json.loads((serving / RECORD).read_text())["section"]
        assert section in (serving_root(lake) / PRESET).read_text()
    assert points > 30 // STEP, "the command was killed at its points"


def test_rollback_of_a_promotion_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever rolls back a promotion that a run or a killed command left unserved wants the champion before it."""
    given = Champions(tmp_path / "lake")
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", str(tmp_path / "lake"))
    for by in ("promote", ""):
        given.lake.set_champion(given.exports[2], command=by)
        commands.rollback(str(KEY), None, "")
        assert given.lake.pointers(EXPORT, KEY).champion == given.exports[1].identity
        assert read_folder(given.lake, KEY).identity == given.exports[1].identity[:16]


def test_champions_says_and_completes_what_was_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = Champions(tmp_path / "lake")
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", str(tmp_path / "lake"))
    given.lake.set_champion(given.exports[0], command="rollback")
    models.list_models()
    said = capsys.readouterr().err
    champion, served = given.exports[0].identity[:16], given.exports[1].identity[:16]
    assert f"{champion} is the champion, and {served} is served" in said
    assert read_folder(given.lake, KEY).identity == champion
    models.list_models()
    assert "interrupted" not in capsys.readouterr().err
