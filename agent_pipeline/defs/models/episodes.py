"""The asset `episodes`: the model plays the held-out tasks in the agent's world."""

import dagster as dg

from agent_pipeline.config.assets import EpisodesConfig
from agent_pipeline.defs.charts import run_chart
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.metadata import numbers, table
from agent_pipeline.defs.partitions import agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import in_force
from agent_pipeline.defs.specs import (
    ARTIFACTS,
    GPU,
    asset_options,
    check_result,
    own_check,
    warning,
)
from agent_pipeline.defs.worker_client import built, run_builder
from agent_pipeline.evaluation.replay_proof import HEAD, TapeProof
from agent_pipeline.evaluation.worlds import REPLAYED
from agent_pipeline.governance.played_world import choose_world
from agent_pipeline.reports.confidence_report import describe_confidence
from agent_pipeline.reports.episode_report import (
    PAGE,
    figure_rows,
    find_variant_warnings,
    parse_episode_report,
    variant_rows,
)
from agent_pipeline.reports.replay_report import (
    HEAD_TO_RECORD,
    ReplayFigures,
    describe_replay,
    list_tasks_to_record,
)
from agent_pipeline.storage.lake import Artifact

CHECK = "model_does_the_job"


def _replay_metadata(figures: ReplayFigures | None) -> dict[str, dg.MetadataValue]:
    """Return what the replayed world settled, and nothing for any other world."""
    if figures is None:
        return {}
    return {
        "settled": dg.MetadataValue.float(figures.settled / figures.episodes),
        "tasks_to_record": table(HEAD_TO_RECORD, list_tasks_to_record(figures)),
    }


def _proof_metadata(proof: TapeProof | None) -> dict[str, dg.MetadataValue]:
    """Return what the recordings prove about the replayed world, if that was examined."""
    return {"tape_proof": table(HEAD, proof.rows)} if proof else {}


@dg.asset(
    **asset_options(
        "exports",
        {"llama", "report"},
        ARTIFACTS,
        EpisodesConfig,
        checks=[
            own_check(
                "episodes",
                CHECK,
                "Passes if the model does at least as many tasks as its base model, and does "
                "harm in no more episodes. Tasks that require an action and all other tasks are "
                "counted separately. The check warns if the model does harm, or does far fewer "
                "tasks, in a variant of the tasks. If the check fails, read the transcripts.",
            )
        ],
        pool=GPU,
    ),
    # The sessions that the recorded agent is scored on come before the export in the graph.
    deps=["heldout_dataset", "tape"],
)
def episodes(
    context: dg.AssetExecutionContext,
    gguf_export: Artifact,
    workspace: dg.ResourceParam[Workspace],
    pipes: dg.ResourceParam[dg.PipesSubprocessClient],
) -> dg.MaterializeResult:
    """Episodes in which the exported model does the held-out tasks in the agent's world.

    An episode is one attempt at one task. The report counts the tasks that were done, and the
    episodes with harm. For comparison, the base model plays the same tasks, and the logged sessions
    of these tasks are scored in the same way. The exported model plays some of the tasks again in
    variants, for example with the tools in another order. Every transcript is kept.

    If an agent has no world of its own, a world can be made from its recorded sessions
    (`replayed`). If no session shows how an episode continues, the episode ends undecided. By
    default (`auto`), this world is used only if the recorded sessions show that its verdicts can be
    trusted (metadata `tape_proof`).

    If the agent has no world at all, no episode is played, and the asset is materialized without
    figures. Otherwise, Dagster would skip the next asset, `champion`. The metadata says why no
    episode was played, and the check warns.
    """
    with user_errors():
        settings, key = workspace.settings(), agent_key(context)
        chosen = choose_world(settings, workspace.open_lake(), key)
        world, why_not, proof = chosen.world, chosen.why_not, _proof_metadata(chosen.proof)
        if why_not:
            context.log.info(
                f"{key} plays no episodes, because {why_not}. Set a world in agents.*.world "
                "(docs/how-to/write-a-world.md)."
            )
            reason = {"no_episodes": why_not, "world": "none"}
            unmeasured = warning(CHECK, False, f"Not measured: {why_not}.", reason)
            return dg.MaterializeResult(
                value=None, metadata={**reason, **proof}, check_results=[unmeasured]
            )
        config = in_force(context, workspace, EpisodesConfig)
        params = {
            "world": world,
            "adapter": settings.candidate(key).reference,
            "gguf_export": gguf_export.reference,
            "config": config.model_dump(),
            "alone": False,
            "held_out": "test",
            "preconditions": settings.preconditions(key),
            "task_kinds": chosen.task_kinds,
        }
        result = run_builder(
            context,
            pipes,
            workspace,
            "episodes",
            params,
            tables=["judged_sessions", "heldout_dataset", *(["tape"] if world == REPLAYED else [])],
        )
        report = parse_episode_report(result["report"])
        head, *rows = figure_rows(report.players)
        variant_head, *variants = variant_rows(report)
        shares = {
            name: share.n / share.of
            for name, share in (
                ("done", report.model.done),
                ("harm", report.model.harm),
                ("done_in_variants", report.in_all_variants("done")),
                ("harm_in_variants", report.in_all_variants("harm")),
            )
            if share and share.of
        }
        confidence = report.model.confidence
        if confidence:
            shares["unsure_turns"] = confidence.unsure / confidence.turns
        metadata = {
            **run_chart(context, {name: shares.get(name) for name in ("done", "harm")}),
            **numbers(shares),
            "figures": table(head, rows),
            "confidence": describe_confidence(confidence),
            "variants": table(variant_head, variants),
            **_replay_metadata(report.model.replay),
            **proof,
            "report": dg.MetadataValue.json(result["report"]),
        }
        done = f"it does {report.model.done} tasks"
        if report.against:
            check = check_result(False, "; ".join(report.against), numbers(shares), CHECK)
        elif varied := find_variant_warnings(report):
            check = warning(CHECK, False, "; ".join([done, *varied]), numbers(shares))
        elif report.model.replay:
            sentence = describe_replay(report.model.replay)
            check = warning(CHECK, False, sentence, numbers(shares))
        elif report.model.harm:
            sentence = f"{done}, and does harm in {report.model.harm}"
            check = check_result(True, sentence, numbers(shares), CHECK)
        else:
            sentence = (
                f"{done}. Its harm was not measured, because the world has no `wrong_changes`."
            )
            check = warning(CHECK, False, sentence, numbers(shares))
        return built(context, workspace, result, metadata, [check], {"transcripts": PAGE})
