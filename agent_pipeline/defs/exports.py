"""Assets of the stage `exports`: the adapter as GGUF files that were checked, and as a model of Ollama's."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from agent_pipeline.config.assets import OWN_NAME, GgufConfig, OllamaConfig
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.partitions import agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import in_force
from agent_pipeline.defs.specs import ADAPTERS, ARTIFACTS, asset_options, own_check, version
from agent_pipeline.defs.worker_client import built, run_worker
from agent_pipeline.export.ollama import model_name
from agent_pipeline.export.serving import register
from agent_pipeline.storage.lake import Artifact

CHECK = "exported_model_is_the_trained_model"


@dg.asset(
    **asset_options(
        "exports",
        {"llama", "file"},
        ARTIFACTS,
        GgufConfig,
        checks=[own_check("gguf_export", CHECK, "Tokens and answers.", blocking=True)],
    ),
    deps=["sft_dataset", *ADAPTERS],
)
def gguf_export(
    context: dg.AssetExecutionContext,
    evaluation: Artifact,
    workspace: dg.ResourceParam[Workspace],
    pipes: dg.ResourceParam[dg.PipesSubprocessClient],
) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
    """The adapter merged into its base, as GGUF with its chat template inside, loaded by llama.cpp: its tokens and its greedy answers on
    held-out conversations are those of the merged model. An export that fails this check is not used: the asset fails."""
    with user_errors():
        config = in_force(context, workspace, GgufConfig)
        adapter = workspace.settings().candidate(agent_key(context))
        params = {"adapter": adapter.reference, "evaluation": evaluation.reference, "config": config.model_dump()}
        result = run_worker(context, pipes, workspace, "export", params)
        report, parity = result["report"], parity_table(result["report"])
        exact = {kind: f"{each['exact']} of {each['prompts']} greedy answers exact" for kind, each in report["answers"].items()}
        check = dg.AssetCheckResult(check_name=CHECK, passed=report["ok"], metadata=exact)
        if not report["ok"]:
            yield check
            raise dg.Failure(
                f"The exported model of {context.partition_key} does not answer as the trained model does ({exact}): it is not used, and "
                "the export before it stays the latest.",
                metadata={"parity": parity},
                allow_retries=False,
            )
        tokens = sum(each["tokens"] for each in report["template"].values())
        metadata = {"parity": parity, "tokens_compared": tokens, "report": dg.MetadataValue.json(report)}
        yield built(context, workspace, result, metadata, [check])


def parity_table(report: dict[str, Any]) -> dg.MetadataValue:
    """A line a GGUF type: its size, and how many of its greedy answers are the merged model's."""
    lines = ["| type | MB | texts and tokens as trained | greedy answers exact |", "|---|---:|---|---|"]
    for kind, answers in report["answers"].items():
        size = report["files"][f"model-{kind}.gguf"] / 1e6
        checked = f"{report['template'][kind]['texts']} texts, {report['template'][kind]['tokens']:,} tokens"
        lines.append(f"| {kind} | {size:.0f} | {checked} | {answers['exact']} of {answers['prompts']} |")
    return dg.MetadataValue.md("\n".join(lines))


@dg.asset(**asset_options("exports", {"llama", "file"}, ARTIFACTS, options=OllamaConfig), deps=["champion"])
def ollama_model(context: dg.AssetExecutionContext, gguf_export: Artifact, workspace: dg.ResourceParam[Workspace]) -> dg.MaterializeResult:
    """A Modelfile for the model that is served, and that model in Ollama where there is an `ollama` command.

    The champion is served (`agent-pipeline promote`). Where none was ever set, the first export is served and stays: a newer one
    replaces it only by being promoted. A model whose episodes speak against it is not registered."""
    with user_errors():
        config = in_force(context, workspace, OllamaConfig)
        key = agent_key(context)
        name = model_name(*key) if config.name == OWN_NAME else config.name
        registration = register(workspace.open_lake(), key, gguf_export, name)
        export, against, text = registration.served.export, registration.against, registration.ollama.text
        if export.identity != gguf_export.identity:
            context.log.info(
                f"{name} stays {export.identity[:16]} ({registration.served.because}); the latest export is {gguf_export.identity[:16]}: "
                f"`agent-pipeline promote {key}` serves it"
            )
        (context.log.error if against else context.log.info)(text)
        return dg.MaterializeResult(
            value=registration.artifact,
            data_version=version(registration.artifact.identity),
            metadata={
                "name": name,
                "serves": export.identity,
                "because": registration.served.because,
                "registered": registration.ollama.created,
                "ollama": text,
                "modelfile": dg.MetadataValue.md(f"```\n{(export.path / 'Modelfile').read_text(encoding='utf-8')}\n```"),
            },
        )
