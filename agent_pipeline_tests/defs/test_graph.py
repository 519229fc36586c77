"""The shape of the graph: what a user sees before anything has run."""

import re
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

import agent_pipeline.defs
from agent_pipeline.cli.runs import materialize, selected_assets
from agent_pipeline.config.assets import ASSETS as OPTIONS
from agent_pipeline.config.settings import load_settings
from agent_pipeline.datasets.ledger import LEDGER_TABLE
from agent_pipeline.definitions import build_defs, defs
from agent_pipeline.defs.asset_keys import add_prefix, asset_key, asset_name
from agent_pipeline.defs.run_config import config_by_group, run_config
from agent_pipeline.errors import DamageError, DataError, name_asset_to_select
from agent_pipeline.ingestion.seen_sessions import SEEN_TABLE
from agent_pipeline.keys import parse_key
from agent_pipeline.options import Options
from agent_pipeline.selection.vectors import VECTORS
from agent_pipeline.training.chain import STEPS, name_adapter_asset
from agent_pipeline_tests.defs.conftest import Bench
from agent_pipeline_tests.lakes import artifact

STAGES = {
    "traces": ["session_store", "sessions", "judged_sessions", "curated_sessions"],
    "datasets": [
        "sft_dataset",
        "heldout_dataset",
        "preference_dataset",
        "kto_dataset",
        "sharegpt_dataset",
        "multi_task_dataset",
        "tape",
    ],
    "coresets": ["trained_sessions", "sft_coreset", "replay_buffer"],
    "models": ["adapter", "evaluation", "method_comparison"],
    "exports": ["gguf_export", "serving", "episodes", "champion", "production"],
}
GRAPH = defs.resolve_asset_graph()
ASSETS = [name for stage in STAGES.values() for name in stage]


def test_the_graph_has_exactly_the_assets_of_its_stages() -> None:
    found = {
        stage: sorted(key.to_user_string() for key in GRAPH.asset_keys_for_group(stage))
        for stage in STAGES
    }
    assert found == {stage: sorted(names) for stage, names in STAGES.items()}
    assert {key.to_user_string() for key in GRAPH.get_all_asset_keys()} == set(ASSETS)


def test_assets_of_remedies() -> None:
    """Every error text says to materialize something that `--select` takes."""
    words = {"again", "it", "several", "the"}
    for path in sorted(Path(agent_pipeline.defs.__path__[0]).parent.rglob("*.py")):
        for name in re.findall(r"[:.;] [Mm]aterialize ([a-z_]+)", path.read_text("utf-8")):
            assert name in {*ASSETS, *words}, (path, name)
    made_by_task = ["row_losses", "canaries", "gguf_export", "evaluation", "episodes"]
    tables = [LEDGER_TABLE, SEEN_TABLE, VECTORS, "sft_dataset", "judged_sessions"]
    for name in (*made_by_task, *tables, *map(name_adapter_asset, STEPS)):
        assert name_asset_to_select(name) in ASSETS, name


@pytest.mark.parametrize("step", STEPS)
def test_remedy_of_damaged_adapter(bench: Bench, step: str) -> None:
    """A damaged adapter of a step is made again by the asset `adapter`."""
    key = parse_key("shop/support")
    made = artifact(bench.lake, name_adapter_asset(step), key, {"name": step}, {"a.bin": "weights"})
    (made.path / "a.bin").write_bytes(b"strange")
    with pytest.raises(DamageError, match=r"materialize `adapter` again"):
        bench.lake.verify(made)
    with pytest.raises(DataError, match=r"materialize `adapter` first"):
        bench.lake.latest(name_adapter_asset(step), parse_key("shop/other"))


def test_edges() -> None:
    """A person reads the lineage at a glance: few edges, and none from a later stage to an earlier one.

    The replay buffer and the gate of a nightly run belong to the stage coresets, which lies between
    datasets and models.
    """
    order = list(STAGES)
    edges = [
        (parent.to_user_string(), key.to_user_string())
        for key in GRAPH.get_all_asset_keys()
        for parent in GRAPH.get(key).parent_keys
    ]
    stage_of = {name: order.index(stage) for stage, names in STAGES.items() for name in names}
    assert len(edges) <= 33
    assert [edge for edge in edges if stage_of[edge[0]] > stage_of[edge[1]]] == []


def test_key_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `key_prefix`, every asset, check, edge, column, job and resource has the prefix."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.toml").write_text('key_prefix = "team/agents"\n', encoding="utf-8")
    prefixed = build_defs()
    graph = prefixed.resolve_asset_graph()
    prefix = ["team", "agents"]
    plain_edges = {
        (parent, key) for key in GRAPH.get_all_asset_keys() for parent in GRAPH.get(key).parent_keys
    }
    edges = {
        (parent, key) for key in graph.get_all_asset_keys() for parent in graph.get(key).parent_keys
    }
    assert edges == {
        (dg.AssetKey([*prefix, *parent.path]), dg.AssetKey([*prefix, *key.path]))
        for parent, key in plain_edges
    }
    assert {(check.asset_key.path[-1], check.name) for check in graph.asset_check_keys} == {
        (check.asset_key.path[-1], check.name) for check in GRAPH.asset_check_keys
    }
    assert all(check.asset_key.path[:-1] == prefix for check in graph.asset_check_keys)
    for job in ("retrain", "mix", "compare_methods"):
        names = {
            key.path[-1]
            for key in prefixed.resolve_job_def(
                f"team__agents__{job}"
            ).asset_layer.executable_asset_keys
        }
        plain = defs.resolve_job_def(job).asset_layer.executable_asset_keys
        assert names == {key.path[-1] for key in plain}
    lineage = graph.get(dg.AssetKey([*prefix, "sft_dataset"])).metadata["dagster/column_lineage"]
    deps = lineage.value.deps_by_column if hasattr(lineage, "value") else lineage.deps_by_column
    assert {dep.asset_key.path[:-1] == prefix for column in deps.values() for dep in column} == {
        True
    }
    assert asset_name(dg.AssetKey([*prefix, "sft_dataset"])) == "sft_dataset"
    assert asset_key("sessions") == dg.AssetKey([*prefix, "sessions"])
    retrain = prefixed.resolve_job_def("team__agents__retrain")
    assert selected_assets(prefixed, retrain, "sessions+") >= {"sessions", "judged_sessions"}


def test_key_prefix_run(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run with a prefix uses its settings, and writes the tables that any other run writes."""
    (tmp_path / "pipeline.toml").write_text('key_prefix = "team"\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    key = parse_key("shop/intern")
    result = materialize(
        build_defs(),
        bench.instance,
        key,
        "sessions,judged_sessions",
        ["judged_sessions.smallest_share=0.25"],
    )
    assert result.success
    made = {event.asset_key.to_user_string() for event in result.get_asset_materialization_events()}
    assert made == {"team/sessions", "team/judged_sessions"}
    assert bench.lake.has("judged_sessions", key)
    assert set(result.dagster_run.run_config["ops"]) == {"team__judged_sessions"}
    (event,) = result.asset_materializations_for_node("team__judged_sessions")
    (row,) = event.metadata["settings"].records
    assert row.data["value"] == 0.25


def test_key_prefix_in_run_configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run config of a nightly run fits the job, with a prefix and without it."""
    monkeypatch.chdir(tmp_path)
    for prefix, op in (("", "adapter"), ("team/agents", "team__agents__adapter")):
        (tmp_path / "pipeline.toml").write_text(
            f'key_prefix = "{prefix}"\n\n[assets.sft_adapter]\nlora_r = 8\n', encoding="utf-8"
        )
        config = run_config(load_settings(), parse_key("shop/intern"))
        assert set(config["ops"]) == {op}
        assert config_by_group(config["ops"])["sft_adapter"]["lora_r"] == 8
        assert dg.validate_run_config(build_defs().resolve_job_def(add_prefix("retrain")), config)


def test_merge_with_a_host_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs run the pipeline's own assets, whatever a host project calls and partitions its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.toml").write_text('key_prefix = "agents"\n', encoding="utf-8")
    days = dg.DailyPartitionsDefinition("2026-01-01")

    @dg.asset(partitions_def=days, group_name="datasets")
    def sessions() -> None: ...

    @dg.asset(partitions_def=days, deps=[sessions])
    def adapter() -> None: ...

    @dg.asset
    def my_multi_task_dataset() -> None: ...

    host = dg.Definitions(
        assets=[sessions, adapter, my_multi_task_dataset],
        executor=dg.multiprocess_executor,
        loggers={"console": dg.colored_console_logger},
    )
    merged = dg.Definitions.merge(host, build_defs(standalone=False))
    dg.Definitions.validate_loadable(merged)
    assert merged.executor is dg.multiprocess_executor
    for name in ("retrain", "mix", "compare_methods"):
        job = merged.resolve_job_def(f"agents__{name}")
        assert job.executor_def is dg.in_process_executor
        assert {key.path[-1] for key in job.asset_layer.executable_asset_keys} == {
            key.path[-1] for key in defs.resolve_job_def(name).asset_layer.executable_asset_keys
        }
        assert all(key.path[0] == "agents" for key in job.asset_layer.executable_asset_keys)
    fresh_tables = merged.resolve_sensor_def("agents__fresh_tables").asset_selection
    assert fresh_tables is not None
    assert dg.AssetKey("sessions") not in fresh_tables.resolve(merged.resolve_asset_graph())


def test_own_settings_of_a_code_location() -> None:
    assert build_defs().executor is dg.in_process_executor and "console" in defs.loggers


def test_held_out_rows() -> None:
    """Nothing that trains or chooses rows to train on comes after the held-out rows in the graph."""
    downstream = {
        key.to_user_string()
        for key in dg.AssetSelection.assets("heldout_dataset").downstream().resolve(GRAPH)
    }
    assert downstream == {
        "heldout_dataset", "sharegpt_dataset", "multi_task_dataset", "method_comparison",
        "evaluation", "gguf_export", "episodes", "champion", "serving",
    }  # fmt: skip
    upstream = dg.AssetSelection.assets("adapter").upstream().resolve(GRAPH)
    assert dg.AssetKey("heldout_dataset") not in upstream


OF_ALL_AGENTS = "multi_task_dataset"


def test_every_edge_stays_within_one_partition_but_for_what_pools_all() -> None:
    partitioned = {
        name for name in ASSETS if GRAPH.get(dg.AssetKey(name)).partitions_def is not None
    }
    assert partitioned == set(ASSETS) - {OF_ALL_AGENTS}
    assert {GRAPH.get(dg.AssetKey(name)).partitions_def.name for name in partitioned} == {
        "agent_pipeline_project_agent"
    }
    for check in GRAPH.asset_check_keys:
        if check.asset_key != dg.AssetKey(OF_ALL_AGENTS):
            assert GRAPH.get(check).partitions_def is not None, (
                f"{check} would block all partitions for one bad project"
            )


def test_an_agents_run_does_not_make_what_pools_all_of_them() -> None:
    jobs = {
        name: defs.resolve_job_def(name).asset_layer.executable_asset_keys
        for name in ("retrain", "mix")
    }
    assert jobs["mix"] == {dg.AssetKey(OF_ALL_AGENTS)} and not jobs["mix"] & jobs["retrain"]


@pytest.mark.parametrize("name", ASSETS)
def test_every_asset_says_what_it_is(name: str) -> None:
    node = GRAPH.get(dg.AssetKey(name))
    assert node.description and len(node.description) > 40
    assert node.tags.get("stage") == node.group_name
    if name != "session_store":
        assert node.owners and node.kinds and node.code_version


@pytest.mark.parametrize(("asset", "options"), OPTIONS.items())
def test_every_run_config_field_has_a_description_and_a_shown_default(
    asset: str, options: type[Options]
) -> None:
    for name, field in options.model_fields.items():
        assert field.description, f"{asset}.{name} has no description"
        assert field.get_default() is not None, f"{asset}.{name} shows no default in the launchpad"


def test_loading_the_code_location_imports_nothing_heavy() -> None:
    heavy = (
        "torch",
        "transformers",
        "trl",
        "peft",
        "datasets",
        "sklearn",
        "matplotlib",
        "pandas",
        "polars",
        "xllamacpp",
    )
    program = f"import sys, agent_pipeline.definitions; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_an_asset_that_dg_scaffolds_is_in_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaffolded = "import dagster as dg\n\n\n@dg.asset\ndef scaffolded(context: dg.AssetExecutionContext) -> dg.MaterializeResult: ...\n"
    (tmp_path / "scaffolded.py").write_text(scaffolded, encoding="utf-8")
    monkeypatch.setattr(
        agent_pipeline.defs, "__path__", [*agent_pipeline.defs.__path__, str(tmp_path)]
    )
    graph = build_defs().resolve_asset_graph()
    del sys.modules["agent_pipeline.defs.scaffolded"]
    assert graph.get_all_asset_keys() == GRAPH.get_all_asset_keys() | {dg.AssetKey("scaffolded")}
