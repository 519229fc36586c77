"""Assets of the stage `exports`: the adapter as GGUF files that were checked, and as a model of Ollama's."""

from collections.abc import Iterator
from typing import Any

import dagster as dg
import pyarrow as pa

from agent_pipeline.config.assets import OWN_NAME, GgufConfig, OllamaConfig
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.models import artifact_made, heldout
from agent_pipeline.defs.partitions import AGENTS, agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import in_force
from agent_pipeline.defs.specs import ARTIFACTS, CANDIDATE, asset_options, version
from agent_pipeline.defs.worker_client import run_worker
from agent_pipeline.errors import DataError
from agent_pipeline.export.ollama import OllamaResult, create, model_name
from agent_pipeline.export.serving import served
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import sha256_of
from agent_pipeline.storage.lake import Artifact, Lake


@dg.asset(
    **asset_options("exports", {"llama", "file"}, ARTIFACTS, options=GgufConfig),
    ins={"adapter": dg.AssetIn(CANDIDATE)},
    dagster_type=dg.Any,  # else Dagster takes an asset with a check for one that gives nothing
    check_specs=[
        dg.AssetCheckSpec(
            "exported_model_is_the_trained_model",
            asset="gguf_export",
            partitions_def=AGENTS,
            blocking=True,
            description="Tokens and answers.",
        )
    ],
)
def gguf_export(
    context: dg.AssetExecutionContext,
    sft_dataset: pa.Table,
    adapter: Artifact,
    evaluation: Artifact,
    workspace: dg.ResourceParam[Workspace],
    pipes: dg.ResourceParam[dg.PipesSubprocessClient],
) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
    """The adapter merged into its base, as GGUF with its chat template inside, loaded by llama.cpp: its tokens and its greedy answers on
    held-out conversations are those of the merged model. An export that fails this check is not used: the asset fails."""
    with user_errors():
        config = in_force(context, workspace, GgufConfig)
        rows = heldout(sft_dataset, context.partition_key)
        params = {"adapter": adapter.reference, "evaluation": evaluation.reference, "config": config.model_dump()}
        made = run_worker(context, pipes, workspace, "export", rows, params)
        report = made["report"]
        parity = parity_table(report)
        exact = {kind: f"{each['exact']} of {each['prompts']} greedy answers exact" for kind, each in report["answers"].items()}
        check = dg.AssetCheckResult(check_name="exported_model_is_the_trained_model", passed=report["ok"], metadata=exact)
        if not report["ok"]:
            yield check
            raise dg.Failure(
                f"The exported model of {context.partition_key} does not answer as the trained model does ({exact}): it is not used, and "
                "the export before it stays the latest.",
                metadata={"parity": parity},
                allow_retries=False,
            )
        yield dg.MaterializeResult(
            value=artifact_made(context, workspace, "gguf_export", made),
            data_version=version(made["identity"]),
            metadata={
                "reused": made["reused"],
                "parity": parity,
                "tokens_compared": sum(each["tokens"] for each in report["template"].values()),
                "report": dg.MetadataValue.json(report),
            },
            check_results=[check],
        )


def parity_table(report: dict[str, Any]) -> dg.MetadataValue:
    """A line a GGUF type: its size, and how many of its greedy answers are the merged model's."""
    lines = ["| type | MB | texts and tokens as trained | greedy answers exact |", "|---|---:|---|---|"]
    for kind, answers in report["answers"].items():
        size = report["files"][f"model-{kind}.gguf"] / 1e6
        checked = f"{report['template'][kind]['texts']} texts, {report['template'][kind]['tokens']:,} tokens"
        lines.append(f"| {kind} | {size:.0f} | {checked} | {answers['exact']} of {answers['prompts']} |")
    return dg.MetadataValue.md("\n".join(lines))


@dg.asset(**asset_options("exports", {"llama", "file"}, ARTIFACTS, options=OllamaConfig), deps=["episodes"])
def ollama_model(context: dg.AssetExecutionContext, gguf_export: Artifact, workspace: dg.ResourceParam[Workspace]) -> dg.MaterializeResult:
    """A Modelfile for the model that is served, and that model in Ollama where there is an `ollama` command.

    The champion is served (`agent-pipeline promote`). Where none was ever set, the first export is served and stays: a newer one
    replaces it only by being promoted. A model whose episodes speak against it is not registered."""
    with user_errors():
        config = in_force(context, workspace, OllamaConfig)
        lake, key = workspace.open_lake(), agent_key(context)
        name = model_name(*key) if config.name == OWN_NAME else config.name
        choice = served(lake, key, gguf_export)
        export = choice.export
        if export.identity != gguf_export.identity:
            context.log.info(
                f"{name} stays {export.identity[:16]} ({choice.because}); the latest export is {gguf_export.identity[:16]}: "
                f"`agent-pipeline promote {key}` serves it"
            )
        made_from = {"gguf_export": export.identity, "name": name}
        identity = sha256_of(made_from)
        building = lake.building("ollama_model", key, identity)
        text = (export.path / "Modelfile").read_text(encoding="utf-8")
        # The export's own Modelfile names the GGUF beside it; this one works from anywhere on this machine.
        (building / "Modelfile").write_text(text.replace("FROM ./", f"FROM {export.path.resolve()}/", 1), encoding="utf-8")
        against = unfit(lake, key, export)
        report = {"name": name, "against": against}
        artifact = lake.finish("ollama_model", key, identity, building, made_from, report, parents=[export.identity])
        if against:
            result = OllamaResult(name, False, f"{name} was not registered, since it is not fit to act: {'; '.join(against)}.")
            context.log.error(result.text)
        else:
            result = create(name, artifact.path / "Modelfile")
            context.log.info(result.text)
        return dg.MaterializeResult(
            value=artifact,
            data_version=version(identity),
            metadata={
                "name": name,
                "serves": export.identity,
                "because": choice.because,
                "registered": result.created,
                "ollama": result.text,
                "modelfile": dg.MetadataValue.md(f"```\n{text}\n```"),
            },
        )


def unfit(lake: Lake, key: PartitionKey, exported: Artifact) -> list[str]:
    """What the episodes that this very export played speak against it; nothing where it played none."""
    try:
        played = lake.latest("episodes", key)
    except DataError:
        return []
    return list(played.manifest["report"]["against"]) if played.manifest["made_from"]["gguf_export"] == exported.identity else []
