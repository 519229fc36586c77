"""The export in the graph: of the right adapter, never used when it failed its check, served only when it is promoted."""

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from agent_pipeline.compute import tasks
from agent_pipeline.compute.artifact_cache import Recipe, build
from agent_pipeline.compute.params import ExportParams, TaskParams, on_this_machine
from agent_pipeline.compute.registry import TASKS, Task
from agent_pipeline.datasets.sft import SFT
from agent_pipeline.defs import worker_client
from agent_pipeline.errors import DataError
from agent_pipeline.export.report import ExportReport, read_export_report
from agent_pipeline.gateway.traffic import describe_rules, read_rules, write_traffic
from agent_pipeline.gateway.turn_checks import TrafficRules
from agent_pipeline.keys import parse_key
from agent_pipeline.progress import silent
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.sessions.tables import to_table
from agent_pipeline.storage.lake import Artifact
from agent_pipeline_tests.lakes import artifact
from agent_pipeline_tests.task_params import task_values
from agent_pipeline_tests.training.world import row

KEY = parse_key("shop/support")
FAILS = {
    "answers": {"f16": {"exact": 0, "near_ties": 0, "prompts": 4}},
    "template": {"f16": {"texts": 1, "tokens": 2}},
    "files": {"model-f16.gguf": 1},
    "gate": {"f16": {"decisions": 0, "turns": 4, "calls": 0, "call_turns": 2}},
    "failed": {"f16": "0 of 4 decisions equal the merged model's"},
    "ollama": {"gguf": "model-f16.gguf", "num_ctx": 2048},
}


class Exports:
    """A lake with rows, an adapter and its evaluation; the export is made by a task that takes no time."""

    def __init__(self, bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bench, self.lake, self.parity = bench, bench.lake, True
        self.modelfile = "FROM ./model-f16.gguf\n"
        self.lake.stage(
            "sft_dataset", KEY, to_table([row(1, "test")], SFT).to_batches(), SFT
        ).commit()
        monkeypatch.setattr(worker_client, "launch", self._worker)

    def artifact(self, asset: str, made_from: dict[str, Any]) -> Artifact:
        report = {"differences": {}, "longest_row_tokens": 9}
        return artifact(
            self.lake, asset, KEY, made_from, report=report, identity=hash_json(made_from)
        )

    def adapter(self, name: str) -> Artifact:
        adapter = self.artifact(
            "sft_adapter", {"name": name, "base_model": "base", "base_revision": ""}
        )
        self.artifact("evaluation", {"adapter": adapter.identity})
        return adapter

    def run(self, *assets: str) -> dg.ExecuteInProcessResult:
        return self.bench.run(str(KEY), *(assets or ("gguf_export", "serving")))

    def served(self) -> str | None:
        if self.lake.pointers("serving", KEY).latest is None:
            return None
        return self.lake.latest("serving", KEY).manifest["made_from"]["gguf_export"]

    def _worker(
        self, context: Any, launcher: Any, name: str, asked: dict[str, Any]
    ) -> dict[str, Any]:
        params = TASKS["export"].decode(on_this_machine(asked))

        def make(folder: Any) -> dict[str, Any]:
            (folder / "Modelfile").write_text(self.modelfile, encoding="utf-8")
            (folder / "model-f16.gguf").write_text("GGUF", encoding="utf-8")
            return FAILS | {"ok": self.parity}

        adapter = params.find_artifact(params.adapter)
        return build(
            Task("export", 1, (), ExportParams, TASKS["export"].function),
            params,
            Recipe("gguf_export", {"adapter": adapter.identity}, make, [adapter]),
        )


@pytest.fixture
def made(bench: Any, monkeypatch: pytest.MonkeyPatch) -> Exports:
    return Exports(bench, monkeypatch)


def test_an_export_that_failed_its_check_is_never_the_latest_nor_served_nor_reused(
    made: Exports,
) -> None:
    made.adapter("good")
    assert made.run("gguf_export").success
    good = made.lake.latest("gguf_export", KEY)
    made.lake.set_champion(good)
    assert made.run().success
    made.adapter("bad")
    made.parity = False
    failed = made.run()
    assert (
        not failed.success
        and "gives other answers than the trained model" in made.bench.sentence(failed)
    )
    checks = [
        event.asset_check_evaluation_data
        for event in failed.all_events
        if event.event_type_value == "ASSET_CHECK_EVALUATION"
    ]
    assert [check.passed for check in checks] == [False]
    assert made.lake.latest("gguf_export", KEY) == good and made.served() == good.identity
    made.parity = True
    again = made.run("gguf_export")
    assert again.asset_materializations_for_node("gguf_export")[0].metadata["reused"].value is False
    assert made.lake.latest("gguf_export", KEY).identity != good.identity


def test_what_is_served_stays_until_another_export_is_promoted(made: Exports) -> None:
    made.adapter("first")
    run = made.run()
    first = made.lake.latest("gguf_export", KEY)
    assert run.success and made.served() is None, "nobody promoted it"
    assert not run.asset_materializations_for_node("serving"), "what did nothing is not green"
    made.lake.set_champion(first)
    made.adapter("second")
    assert made.run().success
    second = made.lake.latest("gguf_export", KEY)
    assert first.identity != second.identity and made.served() == first.identity
    made.lake.set_champion(second)
    rules = TrafficRules(share=0.05, champion=first.identity[:16], act="reads")
    write_traffic(made.lake, KEY, rules, {})
    result = made.run("serving")
    assert made.served() == second.identity
    metadata = result.asset_materializations_for_node("serving")[0].metadata
    assert metadata["serves"].value == f"{second.identity[:16]} (champion)"
    assert metadata["traffic"].value == describe_rules(read_rules(made.lake)[str(KEY)])
    assert "5 %" in metadata["traffic"].value


def export_by_task(made: Exports, adapter: Artifact, outtype: str = "f16") -> dict[str, Any]:
    """What the task itself returns, with the latest evaluation."""
    settings = {
        "outtypes": [outtype],
        "max_new_tokens": 4,
        "max_conversations": 4,
        "imatrix_rows": 0,
        "least_kept": 0.9,
    }
    evaluation = made.lake.latest("evaluation", KEY)
    params = {
        **task_values(made.lake.root, KEY, made.bench.store),
        "adapter": adapter.reference,
        "evaluation": evaluation.reference,
        "config": settings,
    }
    return tasks.export.run(params, silent)


def test_an_evaluation_of_another_adapter_is_refused(made: Exports) -> None:
    made.adapter("evaluated")
    evaluation, other = (
        made.lake.latest("evaluation", KEY),
        made.artifact("sft_adapter", {"name": "other"}),
    )
    with pytest.raises(DataError) as refused:
        export_by_task(made, other)
    assert evaluation.identity[:16] in str(refused.value)


@pytest.fixture
def quantizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program that quantizes, beside the one that converts. The export itself is left out; identities and reuse are real."""
    for name in ("converter", "quantizer"):
        (tmp_path / name).touch()
    monkeypatch.setattr(
        "agent_pipeline.export.converter.find_converter", lambda path: tmp_path / "converter"
    )
    monkeypatch.setattr(
        "agent_pipeline.export.quantizer.find_quantizer", lambda path: [str(tmp_path / "quantizer")]
    )
    monkeypatch.setattr(
        "agent_pipeline.export.gguf_export.export",
        lambda *given: ExportReport(files={given[4].name: 1}),
    )
    monkeypatch.setattr(TaskParams, "base_of", lambda *_: None)
    return tmp_path / "quantizer"


def test_another_build_of_the_quantizer_makes_k_quants_again_and_nothing_else(
    made: Exports, quantizer: Path
) -> None:
    adapter = made.adapter("adapter")
    before: list[str] = []
    after: list[str] = []
    for identities in (before, after):
        identities += [
            export_by_task(made, adapter, outtype)["identity"] for outtype in ("f16", "q4_k_m")
        ]
        quantizer.write_text("another build", encoding="utf-8")
    assert before[0] == after[0] and before[1] != after[1]


def test_an_evaluation_that_is_made_again_leaves_no_old_figures_in_the_export(
    made: Exports, quantizer: Path
) -> None:
    adapter = made.adapter("adapter")
    first = export_by_task(made, adapter)
    made.artifact("evaluation", {"adapter": adapter.identity, "config": "another"})
    again = export_by_task(made, adapter)
    exported = made.lake.find("gguf_export", KEY, first["identity"])
    assert again["reused"] and again["identity"] == first["identity"] and exported is not None
    assert exported.manifest["parents"] == [adapter.identity]
    name = f"shop/support {adapter.identity[:16]}"
    assert read_export_report(exported) == ExportReport(files={name: 1})
