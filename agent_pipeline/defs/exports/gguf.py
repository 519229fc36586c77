"""The assets `gguf_export` (checked GGUF files) and `serving` (the folder of the champion)."""

from collections.abc import Iterator

import dagster as dg

from agent_pipeline.config.assets import GgufConfig, ServingConfig
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.metadata import table
from agent_pipeline.defs.partitions import agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import in_force
from agent_pipeline.defs.specs import (
    ARTIFACTS,
    CPU_HEAVY,
    asset_options,
    check_result,
    own_check,
    version,
)
from agent_pipeline.defs.worker_client import built, run_builder
from agent_pipeline.export.converter import LORA
from agent_pipeline.export.report import ExportReport, parse_export_report
from agent_pipeline.gateway.traffic import describe_rules, read_rules
from agent_pipeline.governance.played_world import find_world_in_force
from agent_pipeline.promotion.champions import ServingPlaces, how_to_promote, serve
from agent_pipeline.promotion.ledger import EXPORT
from agent_pipeline.redaction import Redactor
from agent_pipeline.storage.lake import Artifact

CHECK = "exported_model_is_the_trained_model"


@dg.asset(
    **asset_options(
        "exports",
        {"llama", "file"},
        ARTIFACTS,
        GgufConfig,
        checks=[
            own_check(
                "gguf_export",
                CHECK,
                "Passes if every exported file gives the same prompt tokens and nearly the same "
                "greedy answers as the merged model. If the check fails, the export is not used.",
                blocking=True,
            )
        ],
        pool=CPU_HEAVY,
    ),
)
def gguf_export(
    context: dg.AssetExecutionContext,
    evaluation: Artifact,
    workspace: dg.ResourceParam[Workspace],
    pipes: dg.ResourceParam[dg.PipesSubprocessClient],
) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult]:
    """GGUF files of the adapter merged into its base model, for llama.cpp and Ollama.

    The pipeline loads each file in llama.cpp, and compares its prompt tokens and greedy answers
    with those of the merged model. If they differ, the asset fails, and the previous export stays
    the latest export.
    """
    with user_errors():
        config = in_force(context, workspace, GgufConfig)
        adapter = workspace.settings().candidate(agent_key(context))
        params = {
            "adapter": adapter.reference,
            "evaluation": evaluation.reference,
            "config": config.model_dump(),
        }
        result = run_builder(
            context, pipes, workspace, "export", params, tables=["sft_dataset", "heldout_dataset"]
        )
        report = parse_export_report(result["report"])
        parity = parity_table(report)
        exact = {
            kind: f"{answers} greedy answers are exactly equal"
            for kind, answers in report.answers.items()
        }
        greedy_answers = "; ".join(f"{kind}: {text}" for kind, text in exact.items())
        why = (
            "; ".join(f"{kind}: {reason}" for kind, reason in report.failed.items())
            or f"of the served file, {exact}"
        )
        check = check_result(report.ok, greedy_answers if report.ok else why, exact, CHECK)
        if not report.ok:
            yield check
            raise dg.Failure(
                f"The exported model of {context.partition_key} gives other answers than the "
                f"trained model ({exact}), so the previous export stays the latest export: see "
                "the table `parity` in the metadata.",
                metadata={"parity": parity},
                allow_retries=False,
            )
        tokens = sum(texts.tokens for texts in report.template.values() if texts)
        metadata = {
            "greedy_answers": greedy_answers,
            "parity": parity,
            "tokens_compared": tokens,
            "report": dg.MetadataValue.json(result["report"]),
        }
        if report.limits:
            tools = ", ".join(sorted({limit.tool for limit in report.limits}))
            context.log.warning(
                "llama.cpp's server cannot produce some tool calls that are in the training rows "
                f"of {context.partition_key}: {tools}."
            )
            metadata["limits"] = table(
                ["tool", "count", "of", "why"],
                [[limit.tool, limit.count, limit.of, limit.why] for limit in report.limits],
            )
        if report.too_long:
            context.log.warning(
                f"{report.too_long} held-out conversations of {context.partition_key} do not fit "
                "into the model's context, so the exported files were not checked on them."
            )
            metadata["too_long"] = report.too_long
        yield built(context, workspace, result, metadata, [check])


def parity_table(report: ExportReport) -> dg.MetadataValue:
    """Return one line per GGUF type with its size and its agreement with the merged model."""
    head = [
        "type",
        "MB",
        "texts and tokens equal to training",
        "greedy answers are exactly equal",
        "decisions",
        "calls",
        "served",
    ]
    served = report.ollama.gguf.removeprefix("model-").removesuffix(".gguf")
    served = served.replace("adapter", LORA)
    rows = []
    for kind, answers in report.answers.items():
        size, kept, texts = (
            report.files.get(f"model-{kind}.gguf"),
            report.gate[kind],
            report.template[kind],
        )
        rows.append(
            [
                kind,
                f"{size / 1e6:.0f}" if size else "",
                f"{texts.texts} texts, {texts.tokens:,} tokens" if texts else "",
                str(answers),
                f"{kept.decisions} of {kept.turns}",
                f"{kept.calls} of {kept.call_turns}",
                report.failed.get(kind, "yes" if kind == served else ""),
            ]
        )
    rows += [
        [kind, *[""] * 5, why] for kind, why in report.failed.items() if kind not in report.answers
    ]
    return table(head, rows)


@dg.asset(
    **asset_options("exports", {"llama", "file"}, ARTIFACTS, options=ServingConfig),
    deps=["champion"],
    output_required=False,
    dagster_type=dg.Any,
)
def serving(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> Iterator[dg.MaterializeResult]:
    """The folder that model servers read: the champion of every partition.

    llama.cpp's server, vLLM and Ollama can read the folder. If a partition has no champion, the
    folder has no model for it, and a run does not materialize this asset. To choose a champion, run
    `agent-pipeline promote`.
    """
    with user_errors():
        config = in_force(context, workspace, ServingConfig)
        key, lake = agent_key(context), workspace.open_lake()
        latest = lake.pointers(EXPORT, key).latest
        redactor = Redactor(workspace.settings().redaction_options)
        deciding_world = find_world_in_force(workspace.settings(), lake, key)
        places = ServingPlaces(**config.model_dump())
        serves = serve(lake, key, places, redactor, deciding_world)
        champion = serves.champion
        if champion and latest and champion.identity != latest:
            context.log.info(
                f"{key} is still served by its champion {champion.identity[:16]}. About the latest "
                f"export: {how_to_promote(lake, key)}"
            )
        if serves.unfit:
            context.log.error(
                f"{(champion.identity if champion else '')[:16]} is not fit to act unattended: "
                f"{'; '.join(serves.unfit)}"
            )
        for line in serves.messages:
            context.log.info(line)
        rules = read_rules(lake).get(str(key))
        traffic = {"traffic": describe_rules(rules)} if rules else {}
    if champion:
        yield dg.MaterializeResult(
            value=serves.artifact,
            data_version=version(serves.artifact.identity),
            metadata={
                "serves": f"{champion.identity[:16]} (champion)",
                "folder": dg.MetadataValue.path(str(serves.folder)),
                "messages": "\n".join(serves.messages),
                **traffic,
            },
        )
