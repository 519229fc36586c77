"""Readers of an export's last episodes: none of them uses episodes of another world."""

from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from agent_pipeline.cli.report import print_report
from agent_pipeline.cli.traffic import make_rules
from agent_pipeline.config.settings import Settings
from agent_pipeline.evaluation.stored_kinds import ACTING, NOT_ACTING
from agent_pipeline.evaluation.worlds import REPLAYED
from agent_pipeline.gateway.traffic import Models, read_rules, write_traffic
from agent_pipeline.governance.agent_status import read_agent_status
from agent_pipeline.keys import PartitionKey
from agent_pipeline.pages.episodes import make_last_episodes_page
from agent_pipeline.promotion.champions import find_write_threshold, promote, serve
from agent_pipeline.promotion.episodes_in_force import (
    NO_WORLD,
    DecidingWorld,
    find_last_episodes,
)
from agent_pipeline.promotion.hub import make_model_card
from agent_pipeline.promotion.mlflow_runs import collect_run_content
from agent_pipeline.reports.confidence_report import ConfidenceFigures
from agent_pipeline.reports.episode_report import EpisodeReport, PlayerFigures, Share
from agent_pipeline.storage.lake import Artifact, Lake
from agent_pipeline_tests.export.test_serving import export
from agent_pipeline_tests.lakes import artifact

KEY = PartitionKey("shop", "support")
WORLD = DecidingWorld("w:W")
WORLDS = {WORLD: True, DecidingWorld("w:Other"): False, NO_WORLD: False}
THRESHOLD = -0.5


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"), tmp_path / "cache")


def played_by(lake: Lake, exported: Artifact, latest: bool = True, **made_from: object) -> Artifact:
    """Episodes of an export, with a threshold for its writes."""
    confidence = ConfidenceFigures(9, 0, threshold=THRESHOLD)
    figures = PlayerFigures(done=Share(19, 20), harm=Share(0, 20), confidence=confidence)
    report = msgspec.to_builtins(EpisodeReport({"model": figures}, world="w:W"))
    values = {"gguf_export": exported.identity, "world": "w:W", "sessions": []} | made_from
    return artifact(lake, "episodes", KEY, values, {"episodes.jsonl": ""}, report, latest=latest)


@pytest.fixture
def champion(lake: Lake) -> Artifact:
    """A champion that played in the world `w:W`."""
    exported = export(lake, "a")
    promote(lake, KEY)
    played_by(lake, exported)
    return exported


@pytest.mark.parametrize("world", WORLDS)
class TestReaders:
    def test_threshold(self, lake: Lake, champion: Artifact, world: DecidingWorld) -> None:
        threshold = find_write_threshold(lake, KEY, champion.identity, world)
        assert (threshold == THRESHOLD) == WORLDS[world]

    def test_served_traffic(self, lake: Lake, champion: Artifact, world: DecidingWorld) -> None:
        """The gateway loses a threshold that does not count any more with the next serving."""
        rules = make_rules(settings_of(lake, "w:W"), KEY, 0.1)
        assert rules.threshold == THRESHOLD
        write_traffic(lake, KEY, rules, {str(KEY): Models("m", "", "", "u", 1.0)})
        serve(lake, KEY, deciding_world=world)
        assert (read_rules(lake)[str(KEY)].threshold == THRESHOLD) == WORLDS[world]

    def test_model_card(self, lake: Lake, champion: Artifact, world: DecidingWorld) -> None:
        last = find_last_episodes(lake, KEY, champion.identity, world)
        card = make_model_card(champion, None, episodes=last)
        assert ("19 of 20" in card) == WORLDS[world]
        assert last.why_not in card

    def test_mlflow(self, lake: Lake, champion: Artifact, world: DecidingWorld) -> None:
        content = collect_run_content(lake, KEY, champion, world)
        assert ("episodes/model/done" in content.figures) == WORLDS[world]
        assert (content.tags["episodes_in_force"] == "yes") == WORLDS[world]

    def test_report(self, lake: Lake, champion: Artifact, world: DecidingWorld) -> None:
        screen = Console(record=True, width=300)
        print_report(screen, lake, {KEY: world})
        text = screen.export_text()
        assert ("19 of 20" in text) == WORLDS[world]
        last = find_last_episodes(lake, KEY, champion.identity, world)
        assert last.why_not in text


def settings_of(lake: Lake, world: str) -> Settings:
    agent = {"world": world, "traffic": {"act": "sure"}}
    return Settings(lake=str(lake.root), agents={str(KEY): agent})


@pytest.mark.parametrize("world", ["w:W", "w:Other"])
def test_page(lake: Lake, champion: Artifact, world: str) -> None:
    """The transcripts stay readable, and the page says that they do not count."""
    page = make_last_episodes_page(settings_of(lake, world), lake, KEY)
    assert bool(page.summary) == (world != "w:W")


@pytest.mark.parametrize("world", ["w:W", "w:Other"])
def test_status(lake: Lake, champion: Artifact, world: str) -> None:
    """A person learns that the gateway accepts writes by a threshold that does not count."""
    rules = make_rules(settings_of(lake, "w:W"), KEY, 0.1)
    write_traffic(lake, KEY, rules, {str(KEY): Models("m", "", "", "u", 1.0)})
    waits = read_agent_status(settings_of(lake, world), KEY).waits
    assert any("threshold" in sentence for sentence in waits) == (world != "w:W")


@pytest.mark.parametrize(
    ("world", "is_in_force"),
    [
        (DecidingWorld(REPLAYED, (ACTING,)), True),
        (DecidingWorld(REPLAYED, (ACTING, NOT_ACTING)), False),
        (DecidingWorld(REPLAYED), False),
        (DecidingWorld(why_not="recordings do not prove it"), False),
    ],
)
def test_replayed(lake: Lake, world: DecidingWorld, is_in_force: bool) -> None:
    """If the proof does not hold any more, or for other kinds of tasks, earlier episodes end."""
    exported = export(lake, "a")
    values = {"world": REPLAYED, "task_kinds": [ACTING], "not_played": {}}
    played = played_by(lake, exported, **values)
    last = find_last_episodes(lake, KEY, exported.identity, world)
    assert (last.played, last.in_force) == (played, played if is_in_force else None)
    assert bool(last.why_not) != is_in_force


@pytest.mark.parametrize("kinds", [[ACTING], [NOT_ACTING]])
def test_champion_played_again(lake: Lake, champion: Artifact, kinds: list[str]) -> None:
    """A champion plays in the world of today for each decision. Then it has a threshold again."""
    values = {"world": REPLAYED, "task_kinds": kinds, "not_played": {}}
    compared = played_by(lake, champion, latest=False, **values)
    artifact(lake, "champion", KEY, {"shown": ["of an evaluation", compared.identity]})
    played_by(lake, export(lake, "b"))
    world = DecidingWorld(REPLAYED, (ACTING,))
    is_in_force = kinds == [ACTING]
    last = find_last_episodes(lake, KEY, champion.identity, world)
    assert (last.in_force == compared) == is_in_force and bool(last.why_not) != is_in_force
    threshold = find_write_threshold(lake, KEY, champion.identity, world)
    assert (threshold == THRESHOLD) == is_in_force


def test_nothing_played(lake: Lake) -> None:
    exported = export(lake, "a")
    last = find_last_episodes(lake, KEY, exported.identity, WORLD)
    assert last.played is None and last.why_not


def test_older_version(lake: Lake) -> None:
    """It did not count the tasks that the replayed world left out."""
    exported = export(lake, "a")
    played_by(lake, exported, world=REPLAYED)
    last = find_last_episodes(lake, KEY, exported.identity, DecidingWorld(REPLAYED))
    assert last.in_force is None and "older version" in last.why_not
