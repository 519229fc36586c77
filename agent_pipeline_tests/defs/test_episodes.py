"""The asset `episodes` and what follows from it."""

import json
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import msgspec
import pyarrow as pa
import pytest

from agent_pipeline.compute import tasks
from agent_pipeline.config.assets import ChampionConfig, EpisodesConfig
from agent_pipeline.config.settings import Settings
from agent_pipeline.datasets.sft_tables import HELDOUT_TABLE
from agent_pipeline.defs.exports import champion as champion_module
from agent_pipeline.defs.models.episodes import episodes
from agent_pipeline.errors import SettingsError
from agent_pipeline.evaluation.heldout import recorded_sessions, reply_limit
from agent_pipeline.evaluation.replay_proof import MIN_TASKS
from agent_pipeline.evaluation.stored_kinds import ACTING, NOT_ACTING, NOT_RECORDED
from agent_pipeline.evaluation.worlds import REPLAYED
from agent_pipeline.governance.played_world import PlayedWorld, choose_world
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.champions import unfit
from agent_pipeline.promotion.episodes_in_force import NO_WORLD, DecidingWorld
from agent_pipeline.promotion.nightly_decision import NightlyDecision, PromotionSettings
from agent_pipeline.promotion.stored_scores import read_scores, read_transcripts
from agent_pipeline.reports.episode_report import (
    TRANSCRIPTS,
    EpisodeReport,
    PlayerFigures,
    Share,
    VariantFigures,
)
from agent_pipeline.sessions.session import Message
from agent_pipeline.sessions.tables import JUDGED, to_table
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.evaluation.test_replay_proof import REFUSED, WRONG
from agent_pipeline_tests.evaluation.test_tape import GOOD, naming, recorded, session
from agent_pipeline_tests.evaluation.test_tape import KEY as TAPE_KEY
from agent_pipeline_tests.lakes import artifact, put_rows
from agent_pipeline_tests.task_params import task_values
from agent_pipeline_tests.training.world import row

KEY = PartitionKey("shop", "support")


EMPTY_REPORT = {
    "world": "",
    "tasks": 0,
    "fresh_tasks": 0,
    "trials": 1,
    "players": {},
    "against": [],
}


def test_a_model_is_kept_from_registration_by_its_own_episodes_only(tmp_path):
    lake, world = Lake(str(tmp_path)), DecidingWorld("w:W")
    harmful, other = (artifact(lake, "gguf_export", KEY, {"name": name}) for name in "ab")
    assert unfit(lake, KEY, harmful, world) == []
    for export, against in ((harmful, ["it harms"]), (other, [])):
        made_from = {"gguf_export": export.identity, "world": "w:W"}
        artifact(lake, "episodes", KEY, made_from, report=EMPTY_REPORT | {"against": against})
    assert unfit(lake, KEY, harmful, world) == ["it harms"], (
        "the next night took its harm from sight, also of who promoted it or rolled back to it"
    )
    assert unfit(lake, KEY, other, world) == []


def test_harm_in_episodes_of_another_world_is_still_named(tmp_path: Path) -> None:
    """A person should see it, and see that the episodes do not count any more."""
    lake = Lake(str(tmp_path))
    harmful = artifact(lake, "gguf_export", KEY)
    made_from = {"gguf_export": harmful.identity, "world": "w:Old"}
    artifact(lake, "episodes", KEY, made_from, report=EMPTY_REPORT | {"against": ["it harms"]})
    for world, named in ((DecidingWorld("w:New"), "w:Old"), (NO_WORLD, NO_WORLD.why_not)):
        (reason,) = unfit(lake, KEY, harmful, world)
        assert reason.startswith("it harms") and named in reason


def make_figures(done: int, harm: int | None) -> PlayerFigures:
    """Figures of 20 episodes."""
    return PlayerFigures(done=Share(done, 20), harm=None if harm is None else Share(harm, 20))


def run_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: EpisodeReport
) -> tuple[dg.AssetCheckResult, dict]:
    """The asset's check and metadata for a report."""
    module = "agent_pipeline.defs.models.episodes"
    values = msgspec.to_builtins(report)
    monkeypatch.setattr(f"{module}.run_builder", lambda *args, **options: {"report": values})
    monkeypatch.setattr(f"{module}.in_force", lambda *args: EpisodesConfig())
    monkeypatch.setattr(
        f"{module}.built",
        lambda context, workspace, result, metadata, checks, pages: dg.MaterializeResult(
            value=None, check_results=checks, metadata=metadata
        ),
    )
    exported = artifact(Lake(str(tmp_path)), "gguf_export", KEY)
    settings = SimpleNamespace(
        episodes_world=lambda key: "w:W",
        candidate=lambda key: exported,
        preconditions=lambda key: [],
    )
    workspace = SimpleNamespace(settings=lambda: settings, open_lake=lambda: Lake(str(tmp_path)))
    with dg.build_asset_context(partition_key=str(KEY)) as context:
        made = episodes(context, gguf_export=exported, workspace=workspace, pipes=None)
    (check,) = made.check_results
    return check, made.metadata


@pytest.mark.parametrize("world", ["", REPLAYED])
def test_agent_that_plays_nothing(tmp_path: Path, world: str) -> None:
    """Without a world, or without recordings, the asset says why it has no figures, and warns."""
    lake = Lake(str(tmp_path))
    settings = SimpleNamespace(episodes_world=lambda key: world)
    workspace = SimpleNamespace(settings=lambda: settings, open_lake=lambda: lake)
    exported = artifact(lake, "gguf_export", KEY)
    with dg.build_asset_context(partition_key=str(KEY)) as context:
        made = episodes(context, gguf_export=exported, workspace=workspace, pipes=None)
    (check,) = made.check_results
    assert not check.passed and check.severity == dg.AssetCheckSeverity.WARN
    assert made.metadata["world"] == "none"
    assert made.metadata["no_episodes"] in check.description
    assert ("world" in made.metadata["no_episodes"]) == (not world)


@pytest.mark.parametrize("tells_harm", [True, False])
def test_check_of_a_world_without_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tells_harm: bool
) -> None:
    """The check warns if the world does not tell harm, because nobody knows how much there is."""
    report = EpisodeReport({"model": make_figures(20, 0 if tells_harm else None)})
    check, _ = run_check(tmp_path, monkeypatch, report)
    assert check.passed == tells_harm
    assert ("harm was not measured" in check.description) == (not tells_harm)
    if not tells_harm:
        assert check.severity == dg.AssetCheckSeverity.WARN


@pytest.mark.parametrize(
    ("done", "harm", "passes"), [(20, 0, True), (18, 0, True), (20, 1, False), (17, 0, False)]
)
def test_check_warns_of_harm_and_of_far_fewer_tasks_in_a_variant(
    tmp_path, monkeypatch, done, harm, passes
):
    varied = VariantFigures(make_figures(done, harm), make_figures(20, 0), harmful=["t1"][:harm])
    report = EpisodeReport(
        {"model": make_figures(20, 0)},
        variants={"tool_order": varied},
        unmeasured_variants={"renamed_tool": "no tool can get another name"},
    )
    check, metadata = run_check(tmp_path, monkeypatch, report)
    assert check.passed == passes
    assert passes or check.severity == dg.AssetCheckSeverity.WARN
    assert ("tool_order" in check.description) == (not passes)
    assert metadata["done_in_variants"] == done / 20
    assert metadata["harm_in_variants"] == harm / 20
    cells = [list(row.data.values()) for row in metadata["variants"].records]
    assert [row[0] for row in cells] == ["tool_order", "tool_order", "renamed_tool"]
    assert "not measured" in cells[2][1] and f"{done} of 20 [" in cells[1][2]


def test_episodes_in_variants_are_no_episodes_of_the_tasks_as_they_are(tmp_path):
    """A decision would compare them with the champion's episodes of other tasks."""
    lake = Lake(str(tmp_path))
    entry = {"task_key": "a", "trial": 0, "seed": None, "done": True, "end": "answered"}
    lines = [
        entry | {"player": "model", "wrong_changes": [], "must_act": True},
        entry | {"player": "model", "wrong_changes": ["x"], "variant": "tool_order"},
    ]
    played = artifact(
        lake,
        "episodes",
        KEY,
        {"name": "played"},
        files={TRANSCRIPTS: "".join(f"{json.dumps(line)}\n" for line in lines)},
    )
    assert [line.get("variant") for line in read_transcripts(played)] == [None]
    candidate, baseline = read_scores((None, None), (played, None), same_base=True)
    assert [episode.harmed for episode in candidate.episodes] == [False]
    assert [(each.variant, each.harmed) for each in candidate.varied_episodes] == [
        ("tool_order", True)
    ]
    assert baseline.varied_episodes == ()


def test_what_no_world_measures_does_not_pass(tmp_path):
    lake, settings = Lake(str(tmp_path)), SimpleNamespace(episodes_world=lambda key: "")
    workspace = SimpleNamespace(settings=lambda: settings, open_lake=lambda: lake)
    exported = artifact(lake, "gguf_export", KEY)
    with dg.build_asset_context(partition_key=str(KEY)) as context:
        (check,) = episodes(
            context, gguf_export=exported, workspace=workspace, pipes=None
        ).check_results
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)


class TestProvenTape:
    """The setting `world = "auto"`, which is the default."""

    def choose(
        self, lake: Lake, count: int, good: list[Message], bad: list[Message] | None
    ) -> PlayedWorld:
        """The world for a tape of tasks with two equal good sessions, and two equal bad ones."""
        groups = [(good, "acceptable"), (bad, "unacceptable")]
        rows = [
            session(name, naming(name, messages), task_key=f"task:{number}", verdict=verdict)
            for number in range(count)
            for messages, verdict in groups
            if messages
            for part in "xy"
            for name in [f"{number}{verdict}{part}"]
        ]
        recorded(lake, *rows, reads=("find_order",))
        keys = pa.table({"task_key": [f"task:{number}" for number in range(20)]})
        lake.stage(HELDOUT_TABLE, TAPE_KEY, keys.to_batches(), keys.schema).commit()
        return choose_world(Settings(), lake, TAPE_KEY)

    @pytest.fixture
    def lake(self, tmp_path: Path) -> Lake:
        return Lake(str(tmp_path / "lake"))

    def test_proven(self, lake: Lake) -> None:
        """The replayed world decides, on the proven kind of tasks only."""
        chosen = self.choose(lake, MIN_TASKS, GOOD, WRONG)
        assert (chosen.world, chosen.why_not, chosen.task_kinds) == (REPLAYED, "", [ACTING])

    def test_too_few_tasks(self, lake: Lake) -> None:
        """No episodes are played. The table of the proof says what was missing."""
        chosen = self.choose(lake, MIN_TASKS - 1, GOOD, WRONG)
        assert "log and judge more sessions per task" in chosen.why_not
        assert chosen.proof and not chosen.proof.proven

    def test_no_bad_sessions(self, lake: Lake) -> None:
        assert self.choose(lake, MIN_TASKS, GOOD, None).why_not

    def test_few_held_out_tasks(self, lake: Lake) -> None:
        assert self.choose(lake, 5, GOOD, WRONG).proof is None

    def test_champion_uses_the_same_world(
        self, lake: Lake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """If the proof does not hold any more, last night's episodes do not decide."""
        used = []

        def keep_world(*args: object) -> NightlyDecision:
            used.extend(value for value in args if isinstance(value, PromotionSettings))
            return NightlyDecision(None, None, False, None)

        monkeypatch.setattr(champion_module, "in_force", lambda *args: ChampionConfig())
        monkeypatch.setattr(champion_module, "decide_night", keep_world)
        workspace = SimpleNamespace(settings=Settings, open_lake=lambda: lake)
        for asset in ("evaluation", "gguf_export"):
            lake.set_latest(artifact(lake, asset, TAPE_KEY))
        for count in (MIN_TASKS, MIN_TASKS - 1):
            self.choose(lake, count, GOOD, WRONG)
            with dg.build_asset_context(partition_key=str(TAPE_KEY)) as context:
                champion_module.champion(context, workspace=workspace, pipes=None)
        worlds = [settings.deciding_world for settings in used]
        assert worlds == [DecidingWorld(REPLAYED, (ACTING,)), NO_WORLD]

    def test_no_tape(self, lake: Lake) -> None:
        assert choose_world(Settings(), lake, TAPE_KEY).why_not


def test_a_model_may_write_as_long_a_message_as_the_agent_did_in_its_held_out_rows(tmp_path):
    lake = Lake(str(tmp_path))
    assert reply_limit(lake, KEY) == 96  # no data set was made: fresh tasks are played
    said = [{"role": "user", "content": "x" * 9000}, {"role": "assistant", "content": "y" * 1000}]
    longer = [*said, {"role": "assistant", "content": "z" * 5000}]
    row = {
        "session_id": "s",
        "task_key": "a",
        "tools": [],
        "score": None,
        "created_at": None,
        "turn_classes": [],
    }
    rows = [
        {"row_id": "1", "split": "test", "messages": said},
        {"row_id": "2", "split": "train", "messages": longer},
    ]
    put_rows(lake, KEY, [row | each for each in rows])
    assert reply_limit(lake, KEY) == 564
    # SmolLM2 takes 1.8 tokens for a Chinese character: an agent's usual answer was cut, and its model called unfit.
    put_rows(
        lake,
        KEY,
        [
            rows[0]
            | row
            | {"messages": [*said[:1], {"role": "assistant", "content": "退款已到账" * 40}]}
        ],
    )
    assert reply_limit(lake, KEY) == 664


def test_greedy_trials_of_a_task_are_refused_before_they_are_played(tmp_path):
    """They are one trial: pass^k said of k of them what pass^1 does."""
    lake = Lake(str(tmp_path))
    put_rows(lake, KEY, [row(0, "test")])
    adapter = artifact(lake, "sft_adapter", KEY)
    asked = {
        **task_values(tmp_path, KEY),
        "world": "",
        "gguf_export": None,
        "alone": False,
        "held_out": "test",
    }
    config = EpisodesConfig(trials=3).model_dump()
    with pytest.raises(SettingsError, match="3 trials"):
        tasks.episodes.run(asked | {"adapter": adapter.reference, "config": config})


def test_artifact_names_tasks_that_are_not_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision must know that some held-out tasks were not played."""
    lake = Lake(str(tmp_path))
    groups = enumerate([GOOD, REFUSED])
    recorded(lake, *(session(f"s{i}", said, task_key=f"task:{i}") for i, said in groups))
    keys = [row(number, "test") | {"task_key": f"task:{number}"} for number in range(3)]
    put_rows(lake, TAPE_KEY, keys)
    monkeypatch.setattr(tasks.EpisodesParams, "base_of", lambda *args: None)
    monkeypatch.setattr(tasks, "fit_context", lambda config, *args: config)
    monkeypatch.setattr(tasks, "build", lambda made, params, recipe: recipe.made_from)
    params = task_values(tmp_path, TAPE_KEY) | {
        "adapter": artifact(lake, "sft_adapter", TAPE_KEY).reference,
        "gguf_export": None,
        "world": REPLAYED,
        "config": EpisodesConfig().model_dump(),
        "alone": False,
        "held_out": "test",
        "task_kinds": [ACTING],
    }
    made_from = tasks.episodes.run(params)
    assert made_from["not_played"] == {NOT_ACTING: 1, NOT_RECORDED: 1}


def test_the_recorded_agent_plays_the_first_whole_session_of_each_held_out_task(tmp_path):
    rows = [
        {
            "session_id": "s3",
            "task_key": "a",
            "trial": "1",
            "broken": None,
            "messages": [{"role": "user", "content": "3"}],
        },
        {"session_id": "s1", "task_key": "a", "trial": "0", "broken": "cut", "messages": []},
        {
            "session_id": "s2",
            "task_key": "a",
            "trial": "0",
            "broken": None,
            "messages": [{"role": "user", "content": "2"}],
        },
        {"session_id": "s4", "task_key": "b", "trial": "0", "broken": None, "messages": []},
    ]
    lake, table = (
        Lake(str(tmp_path)),
        to_table(rows, pa.schema([JUDGED.field(name) for name in rows[0]])),
    )
    lake.stage("judged_sessions", KEY, table.to_batches(), table.schema).commit()
    assert recorded_sessions(lake, KEY, {"a"}) == {"a": ("s2", [{"role": "user", "content": "2"}])}
