"""The chain of trainings in the graph: which run, which adapter is the candidate, and what is said where nothing was trained."""

import json
import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from agent_pipeline.config.settings import load_settings
from agent_pipeline.datasets.preferences import PREFERENCES
from agent_pipeline.datasets.sft import SFT
from agent_pipeline.defs import worker_client
from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.keys import parse_key
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.sessions.tables import to_table
from agent_pipeline.training.chain import name_adapter_asset
from agent_pipeline.training.config import Step
from agent_pipeline.training.sft import REPORT_FILE
from agent_pipeline_tests.defs.conftest import Bench, worker_here
from agent_pipeline_tests.training.test_on_policy_steps import WORLD
from agent_pipeline_tests.training.test_preference_steps import pair
from agent_pipeline_tests.training.world import row

pytestmark = pytest.mark.slow
KEY = parse_key("shop/support")


class Chain:
    """A lake with an imitating adapter, its rows and pairs; the tasks run in this process."""

    def __init__(self, bench: Bench, base: Any, adapter: Path, folder: Path) -> None:
        self.bench, self.lake, self.base, self.adapter, self.file = (
            bench,
            bench.lake,
            base,
            adapter,
            folder / "pipeline.toml",
        )
        rows = [row(number, "select" if number > 3 else "train") for number in range(6)]
        self.lake.stage("sft_dataset", KEY, to_table(rows, SFT).to_batches(), SFT).commit()
        self.pairs(4)
        self.imitate(1)

    def pairs(self, count: int) -> None:
        more = {"case_id": "case", "rejected_content_sha256": "0" * 64, "margin": 1.0}
        rows = [
            pair(number) | more | {"rejected_session_id": f"bad-{number}"}
            for number in range(count)
        ]
        self.lake.stage(
            "preference_dataset", KEY, to_table(rows, PREFERENCES).to_batches(), PREFERENCES
        ).commit()

    def imitate(self, steps: int) -> str:
        made_from = {
            "base_model": str(self.base.path),
            "base_revision": self.base.revision,
            "steps": steps,
        }
        identity = hash_json(made_from)
        folder = shutil.copytree(
            self.adapter, self.lake.building("sft_adapter", KEY, identity), dirs_exist_ok=True
        )
        report = json.loads((folder / REPORT_FILE).read_text(encoding="utf-8"))
        self.lake.set_latest(
            self.lake.finish("sft_adapter", KEY, identity, folder, made_from, report)
        )
        return identity

    def night(
        self, chain: str, asset: str = "dpo_adapter", **config: Any
    ) -> dg.ExecuteInProcessResult:
        self.file.write_text(
            f'train = {chain}\n[agents."{KEY}"]\nworld = "{WORLD}"\n', encoding="utf-8"
        )
        result = self.bench.run(
            str(KEY), "adapter", config={asset: {"stop_turns": 0, "max_steps": 1, **config}}
        )
        assert result.success, self.bench.sentence(result)
        return result

    def candidate(self) -> str:
        return load_settings().candidate(KEY).identity


@pytest.fixture
def chain(
    bench: Bench, tiny_base: Any, adapter_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Chain:
    monkeypatch.chdir(tmp_path)
    worker_here(monkeypatch)
    made = Chain(bench, tiny_base, adapter_dir, tmp_path)
    run_task = worker_client.launch

    def launch(context: Any, launcher: Any, task: str, params: dict[str, Any]) -> dict[str, Any]:
        """Run a task here; the first step returns the adapter that the fixture trained once."""
        if task != "train":
            return run_task(context, launcher, task, params)
        first = made.lake.latest("sft_adapter", KEY)
        counts = {"rows": 4, "rows_with_surrogates": 0, "replayed": "nothing"}
        report = first.manifest["report"]
        return {"identity": first.identity, "reused": True, "report": report, **counts}

    monkeypatch.setattr(worker_client, "launch", launch)
    return made


def check_of(result: dg.ExecuteInProcessResult) -> Any:
    (check,) = [
        event.asset_check_evaluation_data
        for event in result.all_events
        if event.event_type_value == "ASSET_CHECK_EVALUATION"
    ]
    return check


def test_the_candidate_is_the_last_adapter_of_the_agents_chain(chain: Chain) -> None:
    imitating = chain.candidate()
    chain.night('["sft"]')
    with pytest.raises(DataError, match="dpo_adapter"):
        chain.lake.latest("dpo_adapter", KEY)

    assert check_of(chain.night('["sft", "dpo"]', min_rows=2)).passed
    adapter = chain.lake.latest("dpo_adapter", KEY)
    assert chain.candidate() == adapter.identity != imitating and adapter.manifest["parents"] == [
        imitating
    ]
    assert (adapter.path / "adapter_model.safetensors").is_file()
    assert {"session-0", "bad-0"} <= set(adapter.manifest["made_from"]["sessions"])
    again = (
        chain.night('["sft", "dpo"]', min_rows=2)
        .asset_materializations_for_node("adapter")[0]
        .metadata
    )
    assert again["reused"].value is True and again["step"].value == "dpo"
    assert [row.data["step"] for row in again["steps"].records] == ["sft", "dpo"]

    chain.night('["sft"]')
    assert chain.candidate() == imitating
    chain.file.write_text('train = ["sft", "dpo"]\n', encoding="utf-8")
    chain.imitate(2)
    with pytest.raises(DataError, match="`adapter` again"):
        chain.candidate()


@pytest.mark.parametrize(
    ("step", "config"),
    [
        ("grpo", {"num_generations": 2}),
        ("grpo", {"num_generations": 2, "use_world": False}),
        ("sdft", {}),
        ("distill", {}),
    ],
)
def test_a_step_that_trains_on_what_it_writes_is_the_candidate(
    chain: Chain, step: Step, config: dict[str, Any]
) -> None:
    imitating, asset = chain.candidate(), name_adapter_asset(step)
    config = config | {
        "min_rows": 2,
        "per_device_train_batch_size": 2,
        "max_new_tokens": 8,
        "max_length": 512,
    }
    config |= {"teacher_model": str(chain.base.path)} if step == "distill" else {}
    assert check_of(chain.night(f'["sft", "{step}"]', asset, **config)).passed
    adapter = chain.lake.latest(asset, KEY)
    assert chain.candidate() == adapter.identity != imitating and adapter.manifest["parents"] == [
        imitating
    ]
    made_from = adapter.manifest["made_from"]
    assert made_from["by"]["task"] == "on_policy" and made_from["sessions"] == [
        f"session-{number}" for number in range(4)
    ]
    assert made_from.get("reward") == (
        None if step != "grpo" else WORLD if config.get("use_world", True) else "logged turns"
    )
    assert ("taught_by" in made_from) is (step == "distill")


def test_too_few_pairs_leave_the_adapter_before_as_the_candidate_and_say_so(chain: Chain) -> None:
    imitating = chain.candidate()
    check = check_of(chain.night('["sft", "dpo"]', min_rows=8))
    assert (
        not check.passed
        and check.severity.value == "WARN"
        and "dpo needs 8 pairs" in check.description
    )
    skipped = chain.lake.latest("dpo_adapter", KEY)
    assert (
        chain.candidate() == imitating and not (skipped.path / "adapter_model.safetensors").exists()
    )
    chain.pairs(8)
    chain.night('["sft", "dpo"]', min_rows=8)
    assert chain.candidate() == chain.lake.latest("dpo_adapter", KEY).identity != skipped.identity


@pytest.mark.parametrize(
    "chain_setting", ["[]", '["dpo"]', '["dpo", "sft"]', '["sft", "sft"]', '["sft", "ppo"]']
)
def test_a_chain_that_cannot_be_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chain_setting: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.toml").write_text(f"train = {chain_setting}\n", encoding="utf-8")
    with pytest.raises(SettingsError, match="'train"):
        load_settings()
