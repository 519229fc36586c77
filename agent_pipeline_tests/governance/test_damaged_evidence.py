"""Serving, rolling back and stopping the traffic, while the evidence about a champion is damaged."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typer.testing import CliRunner

from agent_pipeline.cli.app import app
from agent_pipeline.cli.report import print_report
from agent_pipeline.cli.traffic import make_rules
from agent_pipeline.config.settings import load_settings
from agent_pipeline.datasets.sft_tables import HELDOUT_TABLE
from agent_pipeline.errors import DamageError, DataError
from agent_pipeline.evaluation import replay_proof
from agent_pipeline.evaluation.replay_proof import MIN_TASKS, TAPE_PROOF, prove_tape
from agent_pipeline.evaluation.stored_kinds import ACTING
from agent_pipeline.evaluation.tape import TAPE_TABLE
from agent_pipeline.evaluation.worlds import REPLAYED, hash_world_source
from agent_pipeline.gateway.traffic import Models, read_rules, write_traffic
from agent_pipeline.governance.agent_status import read_agent_status
from agent_pipeline.governance.champion_moves import complete_interrupted_moves, follow
from agent_pipeline.governance.played_world import find_deciding_world, find_world_in_force
from agent_pipeline.governance.pruning import prune
from agent_pipeline.keys import PartitionKey
from agent_pipeline.pages.files import find_stored_pages
from agent_pipeline.promotion.approval import hold_back
from agent_pipeline.promotion.champions import promote, rollback, serving_difference, unfit
from agent_pipeline.promotion.episodes_in_force import find_last_episodes
from agent_pipeline.storage.lake import Artifact, Lake
from agent_pipeline_tests.evaluation.test_replay_proof import WRONG
from agent_pipeline_tests.evaluation.test_tape import GOOD, naming, recorded, session
from agent_pipeline_tests.export.test_episodes_in_force import THRESHOLD, played_by
from agent_pipeline_tests.export.test_serving import export

KEY = PartitionKey("shop", "support")
PIPELINE = """
lake = "lake"
[agents."shop/support".traffic]
act = "sure"
large_model = "openai/gpt-4.1"
"""
MODELS = {str(KEY): Models("openai/gpt-4.1", "", "", "http://localhost:1/v1", 1.0)}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that each test gets a copy of."""
    folder = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        prepare(folder)
    return folder


def prepare(folder: Path) -> None:
    (folder / "pipeline.toml").write_text(PIPELINE, encoding="utf-8")
    lake = load_settings().open_lake()
    rows = [
        session(name, naming(name, said), task_key=f"task:{number}", verdict=verdict)
        for number in range(MIN_TASKS)
        for said, verdict in ((GOOD, "acceptable"), (WRONG, "unacceptable"))
        for part in "xy"
        for name in [f"{number}{verdict}{part}"]
    ]
    recorded(lake, *rows, reads=("find_order",))
    keys = pa.table({"task_key": [f"task:{number}" for number in range(20)]})
    lake.stage(HELDOUT_TABLE, KEY, keys.to_batches(), keys.schema).commit()
    find_deciding_world(load_settings(), lake, KEY)
    for name in "ab":
        play(lake, export(lake, name))
        promote(lake, KEY)
    write_traffic(lake, KEY, make_rules(load_settings(), KEY, 0.1), MODELS)
    assert read_rules(lake)[str(KEY)].threshold == THRESHOLD


@pytest.fixture
def lake(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    """An agent whose champion may write, by episodes on a proven tape. It has an earlier champion.

    The world is the default, `auto`.
    """
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return load_settings().open_lake()


def play(lake: Lake, exported: Artifact) -> Artifact:
    """Episodes of an export that are in force."""
    return played_by(lake, exported, world=REPLAYED, task_kinds=[ACTING], not_played={})


def damage_file(path: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 4] = bytes(byte ^ 0xFF for byte in content[middle : middle + 4])
    path.write_bytes(content)


def table_path(lake: Lake, name: str) -> Path:
    return Path(lake.table(name, KEY).path)


def damage_tape(lake: Lake) -> None:
    damage_file(table_path(lake, TAPE_TABLE))


def cut_tape(lake: Lake) -> None:
    path = table_path(lake, TAPE_TABLE)
    path.write_bytes(path.read_bytes()[:100])


def make_tape_older(lake: Lake) -> None:
    """The tape of a version that did not have these columns."""
    table = pq.read_table(table_path(lake, TAPE_TABLE)).drop_columns(["effect_reason", "system"])
    lake.stage(TAPE_TABLE, KEY, table.to_batches(), table.schema).commit()


def damage_heldout_table(lake: Lake) -> None:
    damage_file(table_path(lake, HELDOUT_TABLE))


def damage_episodes(lake: Lake) -> None:
    """The last episodes of both exports have no readable manifest."""
    for manifest in lake.root.joinpath("models", "episodes").rglob("manifest.json"):
        manifest.write_text("{", encoding="utf-8")


DAMAGES = [damage_tape, cut_tape, make_tape_older, damage_heldout_table]
Damage = Callable[[Lake], None]


@pytest.mark.parametrize("damage", [*DAMAGES, damage_episodes])
class TestCommands:
    """The champion is served, and it makes no write by itself."""

    def test_promote(self, lake: Lake, damage: Damage) -> None:
        exported = export(lake, "c")
        damage(lake)
        entry = promote(lake, KEY)
        warnings, lines = follow(load_settings(), KEY, entry)
        rules = read_rules(lake)[str(KEY)]
        assert lake.pointers("gguf_export", KEY).champion == exported.identity
        assert not serving_difference(lake, KEY)
        assert (rules.champion, rules.threshold) == (exported.identity[:16], None)
        assert any("cannot be read" in line for line in [*warnings, *lines])

    def test_rollback(self, lake: Lake, damage: Damage) -> None:
        follow(load_settings(), KEY, lake.history("gguf_export", KEY)[-1])
        damage(lake)
        entry = rollback(lake, KEY)
        follow(load_settings(), KEY, entry)
        assert not serving_difference(lake, KEY)
        assert read_rules(lake)[str(KEY)].share == 0

    def test_interrupted(self, lake: Lake, damage: Damage) -> None:
        follow(load_settings(), KEY, lake.history("gguf_export", KEY)[-1])
        rollback(lake, KEY)
        damage(lake)
        complete_interrupted_moves(load_settings(), lake, [KEY])
        assert not serving_difference(lake, KEY)

    def test_stop_traffic(self, lake: Lake, damage: Damage) -> None:
        damage(lake)
        result = CliRunner().invoke(app, ["traffic", str(KEY), "--share", "0%"])
        assert result.exit_code == 0, result.output
        assert read_rules(lake)[str(KEY)].share == 0

    def test_traffic(self, lake: Lake, damage: Damage) -> None:
        damage(lake)
        result = CliRunner().invoke(app, ["traffic", str(KEY), "--share", "20%"])
        assert result.exit_code == 0 and "cannot be read" in result.output
        rules = read_rules(lake)[str(KEY)]
        assert (rules.share, rules.threshold) == (0.2, None)


@pytest.mark.parametrize("damage", DAMAGES)
class TestReaders:
    @pytest.mark.parametrize("has_threshold", [True, False])
    def test_status(self, lake: Lake, damage: Damage, has_threshold: bool) -> None:
        damage(lake)
        if not has_threshold:
            follow(load_settings(), KEY, lake.history("gguf_export", KEY)[-1])
        waits = read_agent_status(load_settings(), KEY).waits
        assert any("recordings cannot be read" in sentence for sentence in waits)

    def test_pages(self, lake: Lake, damage: Damage) -> None:
        (episodes,) = lake.finished("episodes", KEY)[-1:]
        (episodes.path / "episodes.jsonl").write_text("", encoding="utf-8")
        damage(lake)
        page = find_stored_pages(load_settings(), lake, KEY)["episodes"]
        assert "recordings cannot be read" in page

    def test_report(self, lake: Lake, damage: Damage) -> None:
        damage(lake)
        screen = Console(record=True, width=2000)
        world = find_world_in_force(load_settings(), lake, KEY)
        print_report(screen, lake, {KEY: world})
        assert "recordings cannot be read" in screen.export_text()

    def test_decision(self, lake: Lake, damage: Damage) -> None:
        """A decision is not made without evidence that exists."""
        damage(lake)
        with pytest.raises(DataError):
            find_deciding_world(load_settings(), lake, KEY)


def test_decision_on_damaged_episodes(lake: Lake) -> None:
    champion = lake.champion("gguf_export", KEY)
    assert champion
    world = find_deciding_world(load_settings(), lake, KEY)
    damage_episodes(lake)
    with pytest.raises(DamageError):
        find_last_episodes(lake, KEY, champion.identity, world)
    assert unfit(lake, KEY, champion, world), "they may show harm"


def test_no_waiting(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback does not wait until all recordings are replayed, for instance after an upgrade."""
    monkeypatch.setattr(replay_proof, "code_version", lambda: {"code_sha256": "other"})
    monkeypatch.setattr(replay_proof, "play", None)
    follow(load_settings(), KEY, lake.history("gguf_export", KEY)[-1])
    follow(load_settings(), KEY, rollback(lake, KEY))
    assert not serving_difference(lake, KEY) and read_rules(lake)[str(KEY)].share == 0
    assert CliRunner().invoke(app, ["traffic", str(KEY), "--share", "0%"]).exit_code == 0
    read_agent_status(load_settings(), KEY)


def test_share_is_stopped_first(lake: Lake) -> None:
    """Another mistake, here in the settings, does not keep the champion answering."""
    text = PIPELINE.replace("large_model", "champion_url")
    Path("pipeline.toml").write_text(text, encoding="utf-8")
    assert CliRunner().invoke(app, ["traffic", str(KEY), "--share", "0%"]).exit_code
    assert read_rules(lake)[str(KEY)].share == 0


def test_stored_proof(lake: Lake) -> None:
    """Without damage, the champion keeps its threshold when it is served again."""
    follow(load_settings(), KEY, lake.history("gguf_export", KEY)[-1])
    assert read_rules(lake)[str(KEY)].threshold == THRESHOLD


def test_pruned_proof(lake: Lake) -> None:
    """The proof of today's recordings stays, and older ones are deleted."""
    (first,) = lake.finished(TAPE_PROOF, KEY)
    assert first.identity not in {item.identity for item in prune(lake, keep=0).unnamed}
    recorded(lake, session("other", GOOD, task_key="task:1", verdict="acceptable"))
    prove_tape(lake, KEY)
    prune(lake, keep=0, delete=True)
    (second,) = lake.finished(TAPE_PROOF, KEY)
    assert second.identity != first.identity


@pytest.mark.parametrize("is_changed", [True, False])
def test_code_of_the_replayed_world(lake: Lake, is_changed: bool) -> None:
    """Another version of the replayed world may give other verdicts."""
    exported = export(lake, "c")
    code = "0" * 64 if is_changed else hash_world_source(REPLAYED)
    values = {"task_kinds": [ACTING], "not_played": {}, "world_sha256": code}
    played_by(lake, exported, world=REPLAYED, **values)
    for world in (
        find_deciding_world(load_settings(), lake, KEY),
        find_world_in_force(load_settings(), lake, KEY),
    ):
        last = find_last_episodes(lake, KEY, exported.identity, world)
        assert bool(last.in_force) != is_changed and bool(last.why_not) == is_changed


def test_damaged_ledger(lake: Lake) -> None:
    """A rollback serves the earlier champion, and a person learns that a decision is not known."""
    hold_back(lake, KEY)
    (entry,) = Path(lake.root.path).rglob("decisions/*.json")
    entry.write_bytes(b"{")
    warnings, _ = follow(load_settings(), KEY, rollback(lake, KEY))
    assert not serving_difference(lake, KEY)
    assert any(entry.name in warning for warning in warnings)
