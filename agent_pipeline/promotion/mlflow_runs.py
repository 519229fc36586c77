"""Candidates as runs of MLflow, and the champion as a version of a registered model, where `MLFLOW_TRACKING_URI` is set.

| in MLflow | what |
|---|---|
| experiment `shop/support`, or `MLFLOW_EXPERIMENT_NAME` | a run an export, once it is decided on or promoted |
| registered model `shop~support`: MLflow takes no `/` | a version a champion; the alias `champion` is on the one of now |

A run holds settings, figures, and as tags what it was made of. Nothing that a session says goes there: no message, no session id, and no
reason that a person gave. What looks private in a setting or a sentence becomes a pseudonym.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.champions import own_episodes
from agent_pipeline.promotion.ledger import EXPORT, last_decision
from agent_pipeline.promotion.report import headline, sentences
from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.storage.lake import Lake
from agent_pipeline.training.chain import find_trained_adapters

if TYPE_CHECKING:
    from mlflow import MlflowClient

URI = "MLFLOW_TRACKING_URI"
ALIAS = "champion"
DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
"""Who promotes does not wait minutes for a server that is gone, which MLflow's own values would have them do."""


class Written(NamedTuple):
    """Whether MLflow has it, and what there is to say of that, in a sentence."""

    ok: bool
    text: str


def write_run(lake: Lake, key: PartitionKey, candidate: Artifact | None = None) -> Written | None:
    """Write the runs of a candidate and of the champion, and point the alias `champion` to it; `None` where no MLflow is set.

    An export has one run, however often it is written. Nothing is raised: a promotion holds whether MLflow takes it or not, and the next
    one, or the next night's `champion`, makes up for what is missing.
    """
    if not os.environ.get(URI):
        return None
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        from mlflow import MlflowClient

        client, champion = MlflowClient(), lake.champion(EXPORT, key)
        written = (
            [_run(client, lake, key, candidate)]
            if candidate and candidate.identity != (champion and champion.identity)
            else []
        )
        if champion:
            run = _run(client, lake, key, champion)
            _name_champion(client, key, run)
            written.append(run)
        return Written(
            True, f"MLflow has {' and '.join(run.info.run_name for run in written)} of {key}."
        )
    except ImportError as error:
        reason = f"{error}: install mlflow-skinny, the extra `mlflow`"
    except Exception as error:  # MLflow lets through whatever its database or the network raise
        message = re.sub(
            r"//[^/\s@]*@", "//", " ".join(str(error).split())
        )  # the URI may hold a password
        reason = f"{type(error).__name__}: {message[:300]}"
    return Written(
        False, f"MLflow was not written to ({reason}). The champion of {key} does not depend on it."
    )


def _name_champion(client: "MlflowClient", key: PartitionKey, run: Any) -> None:
    """The alias is on the version that was made of the run."""
    model, run_id = "~".join(key), run.info.run_id
    if not client.search_registered_models(f"name = '{model}'", max_results=1):
        client.create_registered_model(model, tags={"partition": str(key)})
    versions = client.search_model_versions(
        f"name = '{model}' and run_id = '{run_id}'", max_results=1
    )
    version = (
        versions[0]
        if versions
        else client.create_model_version(
            model, run.info.artifact_uri, run_id, await_creation_for=20
        )
    )
    client.set_registered_model_alias(model, ALIAS, version.version)


def _run(client: "MlflowClient", lake: Lake, key: PartitionKey, export: Artifact) -> Any:
    """The run of an export, found by its tag or created, with all that is known of the export now."""
    from mlflow.entities import Metric, Param, RunTag

    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or str(key)
    experiment = client.get_experiment_by_name(name)
    place = experiment.experiment_id if experiment else client.create_experiment(name)
    found = client.search_runs([place], f"tags.{EXPORT} = '{export.identity}'", max_results=1)
    tags, figures, settings = facts(lake, key, export)
    redact = Redactor(RedactionOptions()).redact_text
    run = (
        found[0]
        if found
        else client.create_run(place, run_name=export.identity[:16], tags={EXPORT: export.identity})
    )
    now = int(time.time() * 1000)
    client.log_batch(
        run.info.run_id,
        metrics=[Metric(name, value, now, 0) for name, value in figures.items()],
        params=[Param(name, redact(str(value))) for name, value in settings.items()],
        tags=[RunTag(name, redact(str(value))) for name, value in tags.items()],
    )
    client.set_terminated(run.info.run_id)
    return run


def facts(
    lake: Lake, key: PartitionKey, export: Artifact
) -> tuple[dict[str, Any], dict[str, float], dict[str, Any]]:
    """The lineage, the figures and the settings of an export."""
    adapters = find_trained_adapters(lake, key, export.manifest["made_from"]["adapter"])
    evaluated = lake.pointers("evaluation", key).latest
    evaluation = lake.find_undamaged("evaluation", key, evaluated) if evaluated else None
    if (
        evaluation
        and evaluation.manifest["made_from"]["adapter"] != export.manifest["made_from"]["adapter"]
    ):
        evaluation = None
    episodes, decided = (
        own_episodes(lake, key, export.identity),
        last_decision(lake, key, export.identity),
    )
    made = [*adapters, *(each for each in (evaluation, episodes) if each), export]
    tags = {"partition": key, "code": export.manifest["made_by"]["code_sha256"]} | {
        each.asset: each.identity for each in made
    }
    tags |= {
        f"table.{name}": version
        for each in adapters
        for name, version in each.manifest["tables"].items()
    }
    tags |= {
        name: adapters[0].manifest["made_from"].get(name, "")
        for name in ("base_model", "base_revision", "rows")
        if adapters
    }
    figures: dict[str, Any] = {}
    if evaluation:
        figures["evaluation"] = {
            "candidate": evaluation.manifest["report"]["adapter"],
            "base": evaluation.manifest["report"]["base"],
        }
    if episodes:
        figures["episodes"] = episodes.manifest["report"]["players"]
    if decided:
        decision = decided.decision
        tags |= {
            "decision": headline(decision),
            "why": "; ".join(sentences(decision)),
            "compared_with": decided.champion or "base",
        }
        figures["decision"] = {"chance": decision.p} | {
            each.name: msgspec.to_builtins(each) for each in decision.figures
        }
    # What is made again of the same adapter may have other settings then, and those of a run cannot change.
    kept = [each for each in made if each not in (evaluation, episodes)]
    settings = {
        f"{each.asset}.{name}": value
        for each in kept
        for name, value in each.manifest["made_from"].get("config", {}).items()
    }
    return tags, dict(_numbers(figures)), settings


def _numbers(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """The numbers in a report, by their path; a count of so many is a share."""
    if isinstance(value, Mapping) and value.keys() == {"n", "of"}:
        value = value["n"] / value["of"] if value["of"] else None
    if isinstance(value, Mapping):
        for each, inner in value.items():
            yield from _numbers(inner, f"{name}/{each}" if name else str(each))
    elif isinstance(value, int | float):
        yield re.sub(r"[^\w. /-]", "_", name), float(value)  # MLflow takes these characters
