"""The asset `method_comparison`: real trainings of tiny models, killed and taken up again, from the notebook, the graph and the shell."""

import json
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from typer.testing import CliRunner

from agent_pipeline import MethodRegistry
from agent_pipeline.cli.app import app
from agent_pipeline.config.assets import ComparisonConfig
from agent_pipeline.config.settings import load_settings
from agent_pipeline.errors import PipelineError, SettingsError
from agent_pipeline.governance.forgetting import forget
from agent_pipeline.keys import parse_key
from agent_pipeline.method_comparison.plan import comparison
from agent_pipeline.storage.paths import LakeFile
from agent_pipeline_tests.defs.conftest import Bench, worker_here
from agent_pipeline_tests.lakes import put_rows
from agent_pipeline_tests.training.world import row

KEY = parse_key("shop/support")
ASKED = ["A_baseline", "B1_coreset_loss", "E_fireact", "wide"]
SETTINGS = """
[assets.sft_adapter]
epochs = 3
max_steps = 12
learning_rate = 4e-3
max_length = 512
replay_ratio = 0.0
rehearsal = 0.0
gradient_accumulation = 1
[assets.evaluation]
max_samples = 6
max_new_tokens = 8
[assets.episodes]
max_new_tokens = 8
max_turns = 2
[assets.method_comparison]
seeds = 2
[methods.wide.assets.sft_adapter]
lora_r = 32
[agents."shop/support"]
world = "agent_pipeline_tests.defs.test_comparison:Weather"
"""


class Weather:
    """Done where the weather of the right city was looked up."""

    def reset(self, messages: list[dict[str, Any]], **row: Any) -> None:
        self.looked_up, self.city = (
            "",
            json.loads(messages[2]["tool_calls"][0]["function"]["arguments"])["city"],
        )

    def weather(self, city: str, days: int = 1) -> str:
        """Weather in a city."""
        self.looked_up = city
        return f'{{"city": "{city}", "sun": true}}'

    def get_reward(self) -> float:
        return float(self.looked_up == self.city)


class Killed(Exception):
    """Stands for a kill in the middle of a step."""


@pytest.fixture
def lake(bench: Bench, tiny_base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "dagster"))
    (tmp_path / "pipeline.toml").write_text(
        f'base_model = "{tiny_base.path}"\n{SETTINGS}', encoding="utf-8"
    )
    worker_here(monkeypatch)
    put_rows(
        bench.lake, KEY, (row(number, "select" if number > 15 else "train") for number in range(20))
    )
    return bench.lake


def adapters(lake: Any) -> dict[str, tuple[LakeFile, dict[str, Any]]]:
    return {
        manifest["identity"]: (file.path.stat().st_mtime_ns, manifest)
        for file, manifest in lake.manifests()
        if file.asset == "sft_adapter"
    }


@pytest.mark.slow
def test_a_comparison_that_was_killed_goes_on_and_nothing_is_trained_twice_from_wherever_it_is_asked(
    lake: Any, bench: Bench
) -> None:
    def kill(done: int, total: int, text: str) -> None:
        if "2/10 B1_coreset_loss, seed 0: training," in text and done > 10:
            raise Killed

    with pytest.raises(Killed):
        MethodRegistry.compare(str(KEY), *ASKED, progress=kill)
    before = adapters(lake)
    assert len(before) == 1
    report = MethodRegistry.compare(str(KEY), *ASKED)
    after = adapters(lake)
    assert len(after) == 8 and after.items() >= before.items()
    assert sorted(manifest["report"]["resumed_from"] for _, manifest in after.values()) == [
        0
    ] * 7 + [10]

    methods = report["methods"]
    assert list(methods) == ["A_baseline", "B1_coreset_loss", "random_8", "E_fireact", "wide"]
    assert [methods[name]["cost"]["rows"] for name in methods] == [16, 8, 8, 16, 16] and methods[
        "B1_coreset_loss"
    ]["cost"]["resumed"]
    assert (
        methods["B1_coreset_loss"]["control"] == "random_8"
        and methods["E_fireact"]["same_as"] == "A_baseline"
    )
    assert all(each["cost"]["tokens"] > 0 < each["cost"]["seconds"] for each in methods.values())
    against = {(each["method"], each["against"]) for each in report["comparisons"]}
    assert against == {(name, "A_baseline") for name in ("B1_coreset_loss", "random_8", "wide")} | {
        ("B1_coreset_loss", "random_8")
    }
    assert report["split"] == "select" and report["turns"] == 6 and report["episodes"] == 4
    figures = methods["A_baseline"]["figures"]
    assert (
        len(figures["tasks_done"]["by_seed"]) == 2
        and figures["heldout_loss"]["mean"] < report["base"]["heldout_loss"]
    )
    assert set(report["rank_correlation"]) == {"decision_auc", "verified_calls", "heldout_loss"}

    asked = ["compare", str(KEY), "--methods", ",".join(ASKED)]
    shown = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert shown.exit_code == 0 and "# Methods compared: shop/support" in shown.output, shown.output
    made = lake.latest("method_comparison", KEY)
    assert (
        made.manifest["report"] == report
        and (made.path / "comparison.png").is_file()
        and adapters(lake) == after
    )
    for asset in ("sft_adapter", "evaluation", "episodes", "gguf_export"):
        assert lake.pointers(asset, KEY).generation == 0
    assert not lake.has("sft_coreset", KEY)
    night = bench.run(str(KEY), "sft_coreset", "adapter")
    assert night.asset_materializations_for_node("adapter")[0].metadata["reused"].value is True

    forget(lake, "session-0", KEY)
    of_rows = [
        file.path
        for file in lake.files()
        if file.asset in ("method_coreset", "row_losses") and file.path.suffix == ".json"
    ]
    assert len(of_rows) > 8 and not [
        path
        for path in of_rows
        if '"session-0"' in path.read_text() or '"row-0"' in path.read_text()
    ]


def test_a_random_coreset_differs_from_its_method_in_the_choice_of_rows_alone(lake: Any) -> None:
    """One served all: a coreset with more replay, or a wider adapter, was held against chance without them."""
    toml = Path("pipeline.toml").read_text(encoding="utf-8") + (
        '[methods.wide_coreset]\nassets = { sft_coreset = { strategy = "hybrid" }, sft_adapter = { lora_r = 64, replay_ratio = 0.0 } }\n'
    )
    Path("pipeline.toml").write_text(toml, encoding="utf-8")
    asked = ComparisonConfig(
        methods=["B1_coreset_loss", "B3_coreset_hybrid", "D_combined", "wide_coreset"]
    )
    made = {each["id"]: each for each in comparison(load_settings(), KEY, asked)["methods"]}
    assert made["B1_coreset_loss"]["control"] == made["B3_coreset_hybrid"]["control"] == "random_8"
    for name in ("B3_coreset_hybrid", "D_combined", "wide_coreset"):
        method, control = made[name], made[made[name]["control"]]
        assert control["assets"] == method["assets"] | {
            "sft_coreset": method["assets"]["sft_coreset"] | {"strategy": "random"}
        }


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        (["sft_adapter.max_length=8192"], ""),
        ([], "[methods.longer.assets.sft_adapter]\nmax_length = 8192\n"),
    ],
)
def test_methods_are_measured_in_the_length_of_their_rows(
    lake: Any, setting: list[str], text: str
) -> None:
    """Models that were trained on long rows were measured on prompts without their beginning."""
    toml = Path("pipeline.toml").read_text(encoding="utf-8")
    Path("pipeline.toml").write_text(toml + text, encoding="utf-8")
    methods = ["A_baseline", *(["longer"] if text else [])]
    plan = comparison(load_settings(), KEY, ComparisonConfig(methods=methods, settings=setting))
    lengths = [plan[asset]["max_length"] for asset in ("evaluation", "episodes")]
    steps = plan["methods"][-1]["assets"]
    assert [*lengths, steps["dpo_adapter"]["max_length"]] == [8192] * 3
    assert plan["methods"][0]["assets"]["sft_adapter"]["max_length"] == (512 if text else 8192)


@pytest.mark.parametrize(
    ("methods", "options", "says"),
    [
        (["A_base"], {}, "There is no method 'A_base' to compare: did you mean A_baseline?"),
        (["F_agenttuning"], {}, "There is no `multi_task_dataset` at"),
        (["A_baseline"], {"split": "test"}, "no rows in the split test to measure on"),
        (["A_baseline"], {"methods": []}, "must be a list"),
        (
            ["A_baseline"],
            {"settings": ["sessions.repair={}"]},
            "'repair' is a setting of sessions, which is not selected",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_trained(
    lake: Any, methods: list[str], options: dict, says: str
) -> None:
    with pytest.raises(PipelineError, match=says):
        MethodRegistry.compare(str(KEY), **({"methods": methods} | options))
    assert not adapters(lake)


def test_a_method_sets_only_what_decides_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for text, says in (
        ("evaluation]\nmax_samples = 1", "cannot set options of 'evaluation'"),
        ("sft_adapter]\nlora = 1", "'methods.x.assets.sft"),
    ):
        (tmp_path / "pipeline.toml").write_text(f"[methods.x.assets.{text}\n", encoding="utf-8")
        with pytest.raises(SettingsError, match=says):
            load_settings()


def test_no_night_makes_a_comparison(bench: Bench) -> None:
    jobs = {
        name: bench.defs.resolve_job_def(name).asset_layer.executable_asset_keys
        for name in ("retrain", "compare_methods")
    }
    assert (
        jobs["compare_methods"] == {dg.AssetKey("method_comparison")}
        and not jobs["retrain"] & jobs["compare_methods"]
    )
