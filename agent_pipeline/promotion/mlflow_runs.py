"""The records in MLflow: candidates as runs, and the champion as a version of a registered model.

Nothing is written unless `MLFLOW_TRACKING_URI` is set.

- The experiment `shop/support`, or `MLFLOW_EXPERIMENT_NAME`, has one run per export that was
  decided on or promoted.
- The registered model `shop~support` (MLflow does not allow `/`) has one version per champion. The
  alias `champion` points to the current champion.

A run has settings, figures, and tags for everything that the model was made from. No content of
sessions is written: no message, no session id, and no reason that a person gave. Private values in
settings and sentences are replaced by pseudonyms, according to the settings `redaction`.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from agent_pipeline.evaluation.evaluation_report import read_evaluation_report
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.decision_wording import (
    describe_hold,
    describe_outcome,
    describe_reasons,
)
from agent_pipeline.promotion.episodes_in_force import DecidingWorld, find_last_episodes
from agent_pipeline.promotion.ledger import EXPORT, find_last_decision
from agent_pipeline.redaction import Redactor
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.storage.lake import Lake
from agent_pipeline.training.chain import find_trained_adapters

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

URI = "MLFLOW_TRACKING_URI"
ALIAS = "champion"
DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""Settings of MLflow's client. With MLflow's own defaults, a promotion would wait for minutes if
the server does not answer.
"""


class Written(NamedTuple):
    """The result of writing records to MLflow.

    Attributes:
        ok: Whether the runs were written.
        text: A sentence for a person.
    """

    ok: bool
    text: str


@dataclass(frozen=True)
class RunContent:
    """The content of an MLflow run.

    Attributes:
        tags: The artifacts that the export was made from, and the decision on it.
        figures: The measured figures, by name.
        settings: The settings, by name.
    """

    tags: dict[str, Any]
    figures: dict[str, float]
    settings: dict[str, Any]


def write_run(
    lake: Lake,
    key: PartitionKey,
    redactor: Redactor,
    deciding_world: DecidingWorld,
    candidate: Artifact | None = None,
) -> Written | None:
    """Write the runs of a candidate and of the champion, and move the alias to the champion.

    An export has one run, even if it is written several times. No error is raised, because a
    promotion is valid even if MLflow fails. The next promotion or nightly run writes the missing
    data.

    Args:
        lake: The lake.
        key: The partition.
        redactor: The redactor that replaces private values in settings and sentences.
        deciding_world: The agent's world of today. Episodes of another world have no figures.
        candidate: The candidate; without a candidate, only the champion is written.

    Returns:
        The result; `None` if MLflow is not configured.
    """
    if not os.environ.get(URI):
        return None
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        from mlflow import MlflowClient

        client, champion = MlflowClient(), lake.champion(EXPORT, key)
        runs = []
        if candidate and (champion is None or candidate.identity != champion.identity):
            content = collect_run_content(lake, key, candidate, deciding_world)
            runs.append(_write_export(client, candidate, content, redactor))
        if champion:
            content = collect_run_content(lake, key, champion, deciding_world)
            run = _write_export(client, champion, content, redactor)
            _name_champion(client, key, run)
            runs.append(run)
        names = " and ".join(run.info.run_name for run in runs)
        return Written(True, f"MLflow has {names} of {key}.")
    except ImportError as error:
        reason = f"{error}: install mlflow-skinny, the extra `mlflow`"
    except Exception as error:  # MLflow passes on all errors of its database and the network
        # The URI may contain a password.
        message = re.sub(r"//[^/\s@]*@", "//", " ".join(str(error).split()))
        reason = f"{type(error).__name__}: {message[:300]}"
    return Written(
        False, f"MLflow was not written to ({reason}). The champion of {key} does not depend on it."
    )


def _name_champion(client: "MlflowClient", key: PartitionKey, run: "Run") -> None:
    """Move the champion alias in MLflow to the model version that belongs to a run."""
    model, run_id = "~".join(key), run.info.run_id
    if not client.search_registered_models(f"name = '{model}'", max_results=1):
        client.create_registered_model(model, tags={"partition": str(key)})
    query = f"name = '{model}' and run_id = '{run_id}'"
    versions = client.search_model_versions(query, max_results=1)
    if versions:
        version = versions[0]
    else:
        version = client.create_model_version(
            model, run.info.artifact_uri, run_id, await_creation_for=20
        )
    client.set_registered_model_alias(model, ALIAS, version.version)


def _write_export(
    client: "MlflowClient", export: Artifact, content: RunContent, redactor: Redactor
) -> "Run":
    """Write all information about an export into its MLflow run, and return the run."""
    from mlflow.entities import Metric, Param, RunTag

    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or str(export.key)
    experiment = client.get_experiment_by_name(name)
    experiment_id = experiment.experiment_id if experiment else client.create_experiment(name)
    query = f"tags.{EXPORT} = '{export.identity}'"
    runs = client.search_runs([experiment_id], query, max_results=1)
    if runs:
        run = runs[0]
    else:
        tags = {EXPORT: export.identity}
        run = client.create_run(experiment_id, run_name=export.identity[:16], tags=tags)
    redact = redactor.redact_text
    milliseconds = int(time.time() * 1000)
    client.log_batch(
        run.info.run_id,
        metrics=[Metric(name, value, milliseconds, 0) for name, value in content.figures.items()],
        params=[Param(name, redact(str(value))) for name, value in content.settings.items()],
        tags=[RunTag(name, redact(str(value))) for name, value in content.tags.items()],
    )
    client.set_terminated(run.info.run_id)
    return run


def collect_run_content(
    lake: Lake, key: PartitionKey, export: Artifact, deciding_world: DecidingWorld
) -> RunContent:
    """Return the lineage, the figures and the settings of an export.

    A figure of an earlier night stays in its run, so the tag `episodes_in_force` tells whether the
    episodes of the run still count.
    """
    adapters = find_trained_adapters(lake, key, export.manifest["made_from"]["adapter"])
    evaluation = _find_evaluation(lake, key, export)
    last_episodes = find_last_episodes(lake, key, export.identity, deciding_world)
    episodes = last_episodes.in_force
    measured = [artifact for artifact in (evaluation, episodes) if artifact]
    tags = {"partition": key, "code": export.manifest["made_by"]["code_sha256"]}
    tags |= {artifact.asset: artifact.identity for artifact in (*adapters, *measured, export)}
    tags["episodes_in_force"] = "yes" if episodes else f"no: {last_episodes.why_not}"
    for adapter in adapters:
        for name, version in adapter.manifest["tables"].items():
            tags[f"table.{name}"] = version
    if adapters:
        for name in ("base_model", "base_revision", "rows"):
            tags[name] = adapters[0].manifest["made_from"].get(name, "")
    figures: dict[str, Any] = {}
    if evaluation:
        report = read_evaluation_report(evaluation)
        figures["evaluation"] = {
            "candidate": msgspec.to_builtins(report.adapter),
            "base": msgspec.to_builtins(report.base),
        }
    if episodes:
        figures["episodes"] = episodes.manifest["report"]["players"]
    entry = find_last_decision(lake, key, export.identity)
    if entry:
        decision = entry.decision
        tags["decision"] = describe_outcome(decision)
        tags["why"] = "; ".join(describe_reasons(decision))
        hold = describe_hold(lake, key, export.identity)
        if hold and not entry.is_hold_of_person:
            tags["why"] = f"{hold}; {tags['why']}"
        tags["compared_with"] = entry.champion or "base"
        figures["decision"] = {"chance": decision.p_value} | {
            figure.name: msgspec.to_builtins(figure) for figure in decision.figures
        }
    # Evaluation and episodes may be made again with other settings. The settings of a run cannot
    # change, so they are left out.
    settings = {
        f"{artifact.asset}.{name}": value
        for artifact in (*adapters, export)
        for name, value in artifact.manifest["made_from"].get("config", {}).items()
    }
    return RunContent(tags, dict(_flatten_numbers(figures)), settings)


def _find_evaluation(lake: Lake, key: PartitionKey, export: Artifact) -> Artifact | None:
    """Return the latest evaluation if it belongs to the export's adapter, otherwise `None`."""
    latest = lake.pointers("evaluation", key).latest
    evaluation = lake.find_undamaged("evaluation", key, latest) if latest else None
    adapter = export.manifest["made_from"]["adapter"]
    if evaluation is None or evaluation.manifest["made_from"]["adapter"] != adapter:
        return None
    return evaluation


def _flatten_numbers(value: object, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a nested report with their paths. `{"n": …, "of": …}` is a share."""
    if isinstance(value, Mapping) and value.keys() == {"n", "of"}:
        value = value["n"] / value["of"] if value["of"] else None
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten_numbers(inner, f"{name}/{key}" if name else str(key))
    elif isinstance(value, int | float):
        yield re.sub(r"[^\w. /-]", "_", name), float(value)  # MLflow takes these characters
