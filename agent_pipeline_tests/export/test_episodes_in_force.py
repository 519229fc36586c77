"""Readers of an export's last episodes: none of them uses episodes of another world."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
from agent_pipeline.promotion.champions import (
    find_write_threshold,
    measure_write_threshold,
    promote,
    serve,
    unfit,
)
from agent_pipeline.promotion.episodes_in_force import (
    MOST_DECISIONS,
    NO_WORLD,
    DecidingWorld,
    find_last_episodes,
)
from agent_pipeline.promotion.hub import make_model_card
from agent_pipeline.promotion.mlflow_runs import collect_run_content
from agent_pipeline.reports.confidence_report import ConfidenceFigures
from agent_pipeline.reports.episode_report import EpisodeReport, PlayerFigures, Share
from agent_pipeline.storage import pointers
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


def played_by(
    lake: Lake,
    exported: Artifact,
    latest: bool = True,
    against: Sequence[str] = (),
    threshold: float = THRESHOLD,
    **made_from: object,
) -> Artifact:
    """Episodes of an export, with a threshold for its writes."""
    confidence = ConfidenceFigures(9, 0, threshold=threshold)
    figures = PlayerFigures(done=Share(19, 20), harm=Share(0, 20), confidence=confidence)
    report = msgspec.to_builtins(
        EpisodeReport({"model": figures}, world="w:W", against=list(against))
    )
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


class TestOwnAndCompared:
    """An export plays its own episodes, and plays again as the champion, for a comparison."""

    OTHER_KINDS = {"world": REPLAYED, "task_kinds": [NOT_ACTING], "not_played": {}}
    TODAY = {"world": REPLAYED, "task_kinds": [ACTING], "not_played": {}}
    WORLD = DecidingWorld(REPLAYED, (ACTING,))

    def compare(
        self, lake: Lake, exported: Artifact, number: int = 0, **played: Any
    ) -> tuple[Artifact, Artifact]:
        """Episodes of the champion, and the page of the decision that compared them."""
        episodes = played_by(lake, exported, latest=False, number=number, **played)
        return episodes, artifact(lake, "champion", KEY, {"shown": [episodes.identity]})

    @pytest.mark.parametrize("is_own_in_force", [True, False])
    @pytest.mark.parametrize("is_harm_in_own", [True, False])
    def test_harm(self, lake: Lake, is_own_in_force: bool, is_harm_in_own: bool) -> None:
        """Harm that was seen is named, in whichever episodes, and also if the others are newer."""
        exported = export(lake, "a")
        worlds = [self.TODAY, self.OTHER_KINDS]
        own, compared = worlds if is_own_in_force else worlds[::-1]
        harms = [["it harms"], []]
        own_harm, compared_harm = harms if is_harm_in_own else harms[::-1]
        played_by(lake, exported, against=own_harm, **own)
        self.compare(lake, exported, against=compared_harm, **compared)
        (reason,) = unfit(lake, KEY, exported, self.WORLD)
        assert reason.startswith("it harms")
        assert (reason == "it harms") == (is_own_in_force == is_harm_in_own)

    def test_harm_in_both_in_force(self, lake: Lake) -> None:
        exported = export(lake, "a")
        played_by(lake, exported, against=["it harms"], **self.TODAY)
        self.compare(lake, exported, against=["it fails"], **self.TODAY)
        assert sorted(unfit(lake, KEY, exported, self.WORLD)) == ["it fails", "it harms"]

    @pytest.mark.parametrize("is_own_newer", [True, False])
    def test_newest(self, lake: Lake, monkeypatch: pytest.MonkeyPatch, is_own_newer: bool) -> None:
        """A decision uses the newest episodes in force. The threshold is the strictest of all."""
        days = ["2026-01-02", "2026-01-01"] if is_own_newer else ["2026-01-01", "2026-01-02"]
        monkeypatch.setattr(pointers, "now", lambda: "2026-01-01")
        exported = export(lake, "a")
        monkeypatch.setattr(pointers, "now", lambda: days[0])
        own = played_by(lake, exported, threshold=-1.0, **self.TODAY)
        monkeypatch.setattr(pointers, "now", lambda: days[1])
        compared, _ = self.compare(lake, exported, threshold=-2.0, **self.TODAY)
        last = find_last_episodes(lake, KEY, exported.identity, self.WORLD)
        assert last.in_force == (own if is_own_newer else compared)
        assert find_write_threshold(lake, KEY, exported.identity, self.WORLD) == -1.0

    def test_next_night_without_harm(self, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
        """One comparison shows harm. The next comparison does not hide it, for 10 comparisons.

        Decisions that compared other exports are not counted.
        """
        days = (f"2026-01-{day:02}" for day in itertools.count(1))
        monkeypatch.setattr(pointers, "now", lambda: next(days))
        exported = export(lake, "a")
        played_by(lake, exported, threshold=-0.5, **self.TODAY)
        harm = {"against": ["it harms"], "threshold": -0.1}
        self.compare(lake, exported, 1, **harm, **self.TODAY)
        other = export(lake, "b")
        for number in range(2, 2 + MOST_DECISIONS):
            self.compare(lake, other, number, **self.TODAY)
        for number in range(20, 19 + MOST_DECISIONS):
            self.compare(lake, exported, number, threshold=-0.2, **self.TODAY)
            assert unfit(lake, KEY, exported, self.WORLD) == ["it harms"]
            assert find_write_threshold(lake, KEY, exported.identity, self.WORLD) == -0.1

    @pytest.mark.parametrize("is_page", [True, False])
    def test_damaged_evidence(self, lake: Lake, is_page: bool) -> None:
        """Damaged episodes may have had a stricter threshold, so the export has none."""
        exported = export(lake, "a")
        played_by(lake, exported, threshold=-0.5, **self.TODAY)
        compared, page = self.compare(lake, exported, threshold=-0.1, **self.TODAY)
        damaged = page if is_page else compared
        (damaged.path / "manifest.json").write_text("{", encoding="utf-8")
        threshold = measure_write_threshold(lake, KEY, exported.identity, self.WORLD)
        assert threshold.confidence is None and damaged.identity[:16] in threshold.why_not

    def test_damage_before_the_export(self, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
        """The page of a decision cannot show an export that did not exist yet."""
        days = (f"2026-01-{day:02}" for day in itertools.count(1))
        monkeypatch.setattr(pointers, "now", lambda: next(days))
        _, page = self.compare(lake, export(lake, "b"), **self.TODAY)
        (page.path / "manifest.json").write_text("{", encoding="utf-8")
        exported = export(lake, "a")
        played_by(lake, exported, **self.TODAY)
        assert find_write_threshold(lake, KEY, exported.identity, self.WORLD) == THRESHOLD

    def test_damaged_page(self, lake: Lake) -> None:
        """The other decisions still count, and a person learns that harm may be missing."""
        exported = export(lake, "a")
        compared, _ = self.compare(lake, exported, **self.TODAY)
        _, page = self.compare(lake, exported, 1, against=["it harms"], **self.TODAY)
        (page.path / "manifest.json").write_text("{", encoding="utf-8")
        last = find_last_episodes(lake, KEY, exported.identity, self.WORLD)
        assert last.in_force == compared
        (reason,) = unfit(lake, KEY, exported, self.WORLD)
        assert page.identity[:16] in reason
