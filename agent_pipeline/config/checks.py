"""Checks of the settings that run before any asset is built.

They find values that only the package that uses them can check, files that are missing, and agents
that no store has. Checks of single values are next to the setting.
"""

import re
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from typing import Any

from agent_pipeline.config.assets import (
    ASSETS,
    CoresetConfig,
    CurationConfig,
    GgufConfig,
    SessionsConfig,
    SftConfig,
)
from agent_pipeline.config.compute import HEAVY, Place
from agent_pipeline.config.resolution import resolve
from agent_pipeline.config.settings import Settings
from agent_pipeline.errors import PipelineError, SettingsError
from agent_pipeline.evaluation.worlds import load_world
from agent_pipeline.export.quantizer import check_outtypes
from agent_pipeline.ingestion.reading import compile_task_pattern
from agent_pipeline.judging import parse_measures
from agent_pipeline.judging.judging_run import JudgingRun
from agent_pipeline.judging.options import JudgingOptions
from agent_pipeline.judging.preconditions import Preconditions
from agent_pipeline.judging.turn_facts import check_facts
from agent_pipeline.judging.verdict_leaks import compile_leak_patterns
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.notifications import open_senders
from agent_pipeline.options import Options, did_you_mean
from agent_pipeline.redaction import check_options
from agent_pipeline.selection.embeddings import check_embeddings
from agent_pipeline.sessions.damage import make_repair_policy
from agent_pipeline.training.config import NO_TEACHER, PREFERENCES, DistillTraining


def problems(settings: Settings) -> list[str]:
    """Return one sentence per setting that cannot work, for all agents and for single agents.

    No store is opened.
    """
    checks = (
        lambda: check_options(settings.redaction_options),
        lambda: settings.split_sizes,
        lambda: open_senders(settings.notify.urls),
    )
    general = [*_sentences(*checks), *_problems_of(settings, None)]
    agent_sentences = [
        f"{name}: {sentence}"
        for name in settings.agents
        for sentence in _problems_of(settings, parse_key(name))
        if sentence not in general
    ]
    files = [
        f"The labels file {path} does not exist: correct the setting `labels`."
        for path in settings.labels_paths
        if not path.exists()
    ]
    if settings.rubric_path and not settings.rubric_path.is_file():
        files.append(
            f"The rubric {settings.rubric_path} does not exist: correct the setting `judge.rubric`."
        )
    return [*general, *agent_sentences, *files]


def _problems_of(settings: Settings, key: PartitionKey | None) -> list[str]:
    checks = [
        partial(lambda options, check: check(resolve(settings, options, key).options), *item)
        for item in CHECKS.items()
    ]
    agent_checks = (_reading, _judge, _world, _preconditions, _teacher, _reasoning, _places)
    return _sentences(*checks, *(partial(check, settings, key) for check in agent_checks))


def _sentences(*checks: Callable[[], object]) -> list[str]:
    """Return the sentences of the checks that fail."""
    sentences = []
    for check in checks:
        try:
            check()
        except PipelineError as error:
            sentences.append(str(error))
    return sentences


def _reading(settings: Settings, key: PartitionKey | None) -> None:
    compile_task_pattern(settings.reading(key).task_pattern if key else settings.task_pattern)


def _judge(settings: Settings, key: PartitionKey | None) -> None:
    if resolve(settings, JudgingOptions, key).options.policy.has_judge("llm"):
        settings.judge.checked()


def _world(settings: Settings, key: PartitionKey | None) -> None:
    """Check that an agent's world can be imported."""
    if world := settings.world(key):
        load_world(world)


def _preconditions(settings: Settings, key: PartitionKey | None) -> None:
    """Check that an agent's preconditions can be loaded."""
    Preconditions.parse(settings.preconditions(key))


def _teacher(settings: Settings, key: PartitionKey | None) -> None:
    """Check that a chain with a distillation step names a teacher."""
    if (
        "distill" in (settings.chain(key) if key else settings.train)
        and not resolve(settings, DistillTraining, key).options.teacher_model
    ):
        raise SettingsError(NO_TEACHER)


def _reasoning(settings: Settings, key: PartitionKey | None) -> None:
    """Check that all training data of a chain has the recorded thoughts, or none of it does."""
    chain, trained = (
        settings.chain(key) if key else settings.train,
        resolve(settings, SftConfig, key).options.reasoning,
    )
    for step, asset in PREFERENCES.items():
        if (
            step in chain
            and resolve(settings, ASSETS[asset], key).options.model_dump()["reasoning"] != trained
        ):
            raise SettingsError(
                f"The settings `sft_dataset.reasoning` and `{asset}.reasoning` differ, so the "
                f"step {step} would unlearn what sft trains: set both to the same value."
            )


def _places(settings: Settings, key: PartitionKey | None) -> None:
    for place in {settings.place(asset, key) for asset in HEAVY}:
        check_place(settings, place)


def check_place(settings: Settings, place: Place) -> None:
    """Check that tasks can run in a place. Raises SettingsError."""
    if place == "local":
        return
    if any(find_spec(package) is None for package in PACKAGES.get(place, ())):
        raise SettingsError(
            f'compute = "{place}" needs packages that are missing: run `pip install '
            f'"agent-pipeline[{place}]"`.'
        )
    if place == "slurm" and not shutil.which("sbatch"):
        raise SettingsError(
            'compute = "slurm" needs the command sbatch, which is not on PATH: start Dagster on a '
            "login node."
        )
    if place == "kubernetes" and not settings.kubernetes.image:
        raise SettingsError(
            'compute = "kubernetes" needs a container image: set `kubernetes.image`.'
        )
    if plain := [
        name
        for name, value in settings.lake_options.items()
        if _SECRET.search(name) and not str(value).startswith("$")
    ]:
        raise SettingsError(
            f'compute = "{place}" would write the value of `lake_options.{plain[0]}` into the '
            'specification of the job: write the value as "$NAME", the name of an environment '
            "variable of the worker's machine."
        )
    if not settings.shares_lake:
        raise SettingsError(
            f'compute = "{place}" runs tasks on machines that cannot open the folder '
            f"{settings.lake_url}: set `lake` to a bucket, or set `shared` to a folder that "
            "contains the lake, and that all machines mount at the same path."
        )


_SECRET = re.compile("secret|token|password|account_key|connection_string")
"""Names of `lake_options` that s3fs, gcsfs and adlfs treat as secrets."""

PACKAGES = {"ray": ("dagster_ray", "ray"), "kubernetes": ("dagster_k8s",)}
"""Packages that are needed to start a worker in a place, by the extra that installs them."""


def unknown_agents(settings: Settings, partitions: Iterable[PartitionKey]) -> list[str]:
    """Return one sentence per agent that has settings but is not in any store."""
    known = [str(key) for key in partitions]
    return [
        f'[agents."{name}"] is for an agent that no store contains{did_you_mean(name, known)}'
        for name in settings.agents
        if name not in known
    ]


def _curation(config: CurationConfig) -> None:
    parse_measures(config.required_measures)
    compile_leak_patterns(config.verdict_leaks)


CHECKS: dict[type[Options], Callable[[Any], object]] = {
    SessionsConfig: lambda config: make_repair_policy(config.repair),
    JudgingOptions: JudgingRun.from_options,
    CurationConfig: _curation,
    SftConfig: lambda config: check_facts(config.untrained_turns),
    CoresetConfig: lambda config: check_embeddings(config.embeddings),
    GgufConfig: lambda config: check_outtypes(config.outtypes),
}
"""Checks of an asset's settings beyond types and bounds, defined next to the asset's code."""
