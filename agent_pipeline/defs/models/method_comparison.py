"""The asset `method_comparison`, which is not part of any nightly run."""

import base64
from collections import Counter

import dagster as dg

from agent_pipeline.config.assets import ADAPTER, ComparisonConfig
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.partitions import agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import in_force
from agent_pipeline.defs.specs import ARTIFACTS, GPU, asset_options
from agent_pipeline.defs.worker_client import built, run_builder
from agent_pipeline.method_comparison.comparison_report import ComparisonReport
from agent_pipeline.method_comparison.plan import comparison
from agent_pipeline.method_comparison.report import CHART, PAGE, page
from agent_pipeline.storage.lake import Artifact
from agent_pipeline.structs import convert_value

_READS = [
    "judged_sessions",
    "sft_dataset",
    "heldout_dataset",
    "preference_dataset",
    "kto_dataset",
    "multi_task_dataset",
    "replay_buffer",
]


@dg.asset(
    **asset_options("models", {"pytorch", "report"}, ARTIFACTS, ComparisonConfig, pool=GPU),
    # A comparison reuses the adapters of the nights. The tables of `_READS` come before one of
    # these assets in the graph.
    deps=[ADAPTER, "multi_task_dataset"],
)
def method_comparison(
    context: dg.AssetExecutionContext,
    workspace: dg.ResourceParam[Workspace],
    pipes: dg.ResourceParam[dg.PipesSubprocessClient],
) -> dg.MaterializeResult:
    """A report that compares training methods on the same rows, held-out turns and episodes.

    Each method is trained with several seeds. A method that selects a coreset is also compared
    with a random coreset. The job `compare_methods` makes this asset. The compared models are never
    served.
    """
    with user_errors():
        config = in_force(context, workspace, ComparisonConfig)
        plan = comparison(workspace.settings(), agent_key(context), config)
        result = run_builder(context, pipes, workspace, "compare_methods", plan, tables=_READS)
        report = convert_value(result["report"], ComparisonReport)
        artifact = built(context, workspace, result, {}, [], {"report": PAGE})
        assert isinstance(artifact.value, Artifact)
        picture = base64.b64encode((artifact.value.path / CHART).read_bytes()).decode("ascii")
        verdicts = Counter(
            "beyond noise" if comparison.beyond_noise else "within noise"
            for comparison in report.comparisons
        )
        more = {
            "comparison": dg.MetadataValue.md(page(report, f"data:image/png;base64,{picture}")),
            "differences": dg.MetadataValue.json(dict(verdicts)),
            "figures": dg.MetadataValue.json(result["report"]),
        }
        return artifact._replace(metadata={**(artifact.metadata or {}), **more})
