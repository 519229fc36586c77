"""The night, the shell and the UI take the same settings from `pipeline.toml`; a run says where each was set."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from agent_pipeline.cli.runs import materialize
from agent_pipeline.compute.artifact_cache import Recipe, build
from agent_pipeline.compute.params import TrainParams, on_this_machine
from agent_pipeline.compute.tasks import TASKS
from agent_pipeline.config.assets import ASSETS, AdapterConfig, EvaluationConfig
from agent_pipeline.config.resolution import fingerprint, resolve
from agent_pipeline.config.saving import save
from agent_pipeline.config.settings import load_settings
from agent_pipeline.defs import worker_client
from agent_pipeline.defs.jobs import RETRAIN
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import (
    config_by_asset,
    config_by_group,
    resolve_for_run,
    run_config,
)
from agent_pipeline.defs.runs import LOCATION_TAGS, SETTINGS_VERSION_TAG
from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection.tables import read_chosen_rows
from agent_pipeline.training.provenance import name_rows
from agent_pipeline_tests.defs.conftest import Bench, metadata
from agent_pipeline_tests.lakes import artifact

KEY, OTHER = PartitionKey("shop", "intern"), PartitionKey("office", "rooms")
TO_ADAPTER = "+adapter"


@pytest.fixture
def tree(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty pipeline.toml in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.toml").write_text("", encoding="utf-8")
    return tmp_path / "pipeline.toml"


@pytest.fixture
def trained(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every adapter that was really made: its base and configuration. Training itself is left out; identities and reuse are real."""
    made: list[dict[str, Any]] = []

    def worker(context: Any, launcher: Any, task: str, asked: dict[str, Any]) -> dict[str, Any]:
        params = TASKS[task].decode(on_this_machine(asked))
        assert isinstance(params, TrainParams)

        def train(folder: Path) -> dict[str, Any]:
            made.append({"base_model": params.base_model, "config": params.config})
            (folder / "adapter_model.safetensors").write_bytes(b"weights")
            losses = dict.fromkeys(("loss_first", "loss_last"), 1.0)
            return {
                "log_history": [],
                "row_ids": [],
                "rows": {},
                "device": "cpu",
                "template": {"why": "its own"},
                **losses,
            }

        rows = name_rows(read_chosen_rows(params.open_lake(), params.key).rows)
        decided = {
            name: getattr(params, name)
            for name in ("base_model", "base_revision", "replay_ratio", "config")
        }
        result = build(TASKS[task], params, Recipe("sft_adapter", {**decided, **rows}, train))
        return result | {
            "rows": rows["rows"],
            "rows_with_surrogates": 0,
            "replay": {},
            "replayed": "nothing",
        }

    monkeypatch.setattr(worker_client, "launch", worker)
    return made


def night(bench: Bench, key: PartitionKey, *assets: str) -> dg.ExecuteInProcessResult:
    """What the schedule would launch now for an agent."""
    result = bench.defs.resolve_job_def(RETRAIN).execute_in_process(
        instance=bench.instance,
        partition_key=str(key),
        asset_selection=[dg.AssetKey(name) for name in assets],
        run_config=run_config(load_settings(), key),
        raise_on_error=False,
    )
    assert result.success, bench.sentence(result)
    return result


def settings_of(result: dg.ExecuteInProcessResult, asset: str) -> dict[str, tuple[Any, str]]:
    """What a materialization's metadata says of its settings: value and place, by name."""
    table = metadata(result, asset).get("settings")
    return (
        {row.data["setting"]: (row.data["value"], row.data["set_by"]) for row in table.records}
        if table
        else {}
    )


UPSTREAM = (
    "sessions",
    "judged_sessions",
    "curated_sessions",
    "sft_dataset",
    "heldout_dataset",
    "sft_coreset",
    "replay_buffer",
)


def test_a_night_after_a_saved_setting_makes_what_the_shell_made_and_trains_nothing_twice(
    bench: Bench, tree: Path, trained
) -> None:
    shell = materialize(
        bench.defs, bench.instance, KEY, TO_ADAPTER, ["when_unjudged=train_unverified", "lora_r=4"]
    )
    assert shell.success, bench.sentence(shell)
    identity = bench.lake.latest("sft_adapter", KEY).identity
    assert settings_of(shell, "adapter") == {"sft_adapter.lora_r": (4, "this run")}
    save(
        {"judged_sessions": {"when_unjudged": "train_unverified"}, "sft_adapter": {"lora_r": 4}},
        KEY,
    )
    at_night = night(bench, KEY, *UPSTREAM, "adapter")
    assert bench.lake.latest("sft_adapter", KEY).identity == identity and len(trained) == 1
    assert settings_of(at_night, "adapter") == {
        "sft_adapter.lora_r": (4, '[agents."shop/intern".assets.sft_adapter]')
    }


def test_an_agents_own_setting_holds_for_it_alone_also_in_a_run_that_says_nothing(
    bench: Bench, tree: Path, trained
) -> None:
    tree.write_text(
        '[assets.sft_adapter]\nlora_r = 8\n[agents."shop/intern".assets.sft_adapter]\nlora_r = 2\n',
        encoding="utf-8",
    )
    for key in (KEY, OTHER):
        assert bench.run(
            str(key),
            *UPSTREAM,
            "adapter",
            config={"judged_sessions": {"when_unjudged": "train_unverified"}},
        ).success
    assert [each["config"]["lora_r"] for each in trained] == [2, 8]


def prefilled(asset: str) -> dict[str, Any]:
    """The form of an asset as the launchpad fills it in: every default for all agents."""
    return resolve(load_settings(), ASSETS[asset]).options.model_dump()


def test_a_launchpads_untouched_default_gives_way_to_the_agents_own_setting_and_a_changed_one_does_not(
    bench: Bench, tree: Path
) -> None:
    tree.write_text(
        '[agents."shop/intern".assets.judged_sessions]\nwhen_unjudged = "train_unverified"\nscore_acceptable = 0.9\n',
        encoding="utf-8",
    )
    assert bench.run(str(KEY), "sessions").success
    form = prefilled("judged_sessions") | {"score_acceptable": 0.7}
    result = bench.run(str(KEY), "judged_sessions", config={"judged_sessions": form})
    own = '[agents."shop/intern".assets.judged_sessions]'
    assert settings_of(result, "judged_sessions") == {
        "when_unjudged": ("train_unverified", own),
        "score_acceptable": (0.7, "this run"),
    }


def test_a_length_that_the_launchpad_only_shows_is_not_followed(tree: Path) -> None:
    """The evaluation was as long as the rows of other agents."""
    tree.write_text(
        "[assets.sft_adapter]\nmax_length = 6000\n"
        '[agents."shop/intern".assets.sft_adapter]\nmax_length = 3000\n',
        encoding="utf-8",
    )
    form = prefilled("sft_adapter")
    for values, length in ((form, 3000), (form | {"max_length": 4000}, 4000)):
        options, _ = resolve_for_run(run_with(values), Workspace(), EvaluationConfig)
        assert options.max_length == length


def run_with(values: dict[str, Any]) -> Any:
    """The context of an asset in a run whose form has these values of `sft_adapter`."""
    ops = config_by_asset({"sft_adapter": values}) if values else {}
    return SimpleNamespace(
        run=SimpleNamespace(run_config={"ops": ops}, tags={}),
        op_execution_context=SimpleNamespace(op_config={}),
        has_partition_key=True,
        partition_key=str(KEY),
        log=SimpleNamespace(info=print),
    )


@pytest.mark.parametrize("asset", ["dpo_adapter", "kto_adapter", "evaluation", "episodes"])
def test_a_length_that_training_chose_is_followed(tree: Path, asset: str) -> None:
    """With a larger base, held-out prompts lost messages that fitted in training."""

    def length(values: dict[str, Any] | None = None, sft_adapter: Any = None) -> int:
        context = run_with(values or {})
        options, _ = resolve_for_run(context, Workspace(), ASSETS[asset], sft_adapter)
        return options.model_dump()["max_length"]

    assert length() == 2048
    lake = load_settings().open_lake()
    chosen = {"config": {"max_length": 6144}}
    now = artifact(lake, "sft_adapter", KEY, chosen, latest=False)
    assert length(sft_adapter=now) == 6144, "a step continues from the adapter of its own run"
    artifact(lake, "sft_adapter", KEY, {"config": {"max_length": 5120}})
    assert length() == 5120
    assert length(sft_adapter=now) == 6144
    assert length({"max_length": 4096}) == 4096
    tree.write_text("[assets.sft_adapter]\nmax_length = 3000\n", encoding="utf-8")
    assert length() == 3000
    tree.write_text(f"[assets.{asset}]\nmax_length = 1024\n", encoding="utf-8")
    assert length() == 1024


def test_a_run_names_the_settings_of_several_assets_too(bench: Bench, tree: Path) -> None:
    tree.write_text(
        'task_pattern = "(.*)"\n[split]\ntest = 0.3\n[redaction]\nphone_regions = ["DE"]\n',
        encoding="utf-8",
    )
    result = bench.run(str(KEY), *UPSTREAM[:4])
    assert settings_of(result, "sessions") == {
        "redaction.phone_regions": ('["DE"]', "[redaction]"),
        "task_pattern": ("(.*)", "task_pattern"),
    }
    assert settings_of(result, "sft_dataset") == {"split.test": (0.3, "[split]")}


def test_a_run_without_a_partition_ends_in_a_sentence(bench: Bench) -> None:
    result = bench.defs.resolve_job_def(RETRAIN).execute_in_process(
        instance=bench.instance, asset_selection=[dg.AssetKey("sessions")], raise_on_error=False
    )
    assert "no partition" in bench.sentence(result)


def test_a_run_of_the_shell_is_the_code_locations_and_names_what_it_sets(
    bench: Bench, tree: Path
) -> None:
    result = materialize(
        bench.defs, bench.instance, KEY, "sessions", ['repair={"orphan_output": "repair"}']
    )
    tags = result.dagster_run.tags
    assert tags.items() >= LOCATION_TAGS.items() and tags["agent_pipeline/set"] == "sessions.repair"
    assert SETTINGS_VERSION_TAG not in tags, (
        "only a run of the whole graph has taken in the store under its settings"
    )


def test_the_night_sends_what_is_set_and_nothing_else(tree: Path) -> None:
    assert run_config(load_settings(), KEY) == {}
    tree.write_text(
        'preset = "smoke"\n[agents."shop/intern".assets.sft_adapter]\nmax_steps = 9\n',
        encoding="utf-8",
    )
    sent = config_by_group(run_config(load_settings(), KEY)["ops"])
    assert sent["sft_adapter"]["max_steps"] == 9 and "sessions" not in sent
    assert resolve(load_settings(), AdapterConfig, KEY, sent["sft_adapter"]) == resolve(
        load_settings(), AdapterConfig, KEY
    )
    assert fingerprint(load_settings(), KEY, sent) == fingerprint(load_settings(), KEY)
