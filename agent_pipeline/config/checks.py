"""What is wrong with the settings, before any run: values that only a room can judge, files that are missing, agents that no store has."""

from collections.abc import Callable, Iterable
from typing import Any

from agent_pipeline.config.assets import CoresetConfig, CurationConfig, JudgingConfig, SessionsConfig, SftConfig
from agent_pipeline.config.resolution import resolve
from agent_pipeline.config.settings import Settings
from agent_pipeline.errors import PipelineError
from agent_pipeline.judging import Policy, parse_measures
from agent_pipeline.judging.leaks import leak_patterns
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.options import Options, did_you_mean
from agent_pipeline.selection.embeddings import check_embeddings
from agent_pipeline.sessions.damage import repair_policy


def problems(settings: Settings) -> list[str]:
    """A sentence for each setting that cannot work, for all agents and for each that has settings of its own. Opens no store."""
    general = _problems_of(settings, None)
    own = [
        f"{name}: {sentence}" for name in settings.agents for sentence in _problems_of(settings, parse_key(name)) if sentence not in general
    ]
    files = [f"The labels {path} do not exist: correct the setting labels." for path in settings.labels_paths if not path.exists()]
    if settings.rubric_path and not settings.rubric_path.is_file():
        files.append(f"The rubric {settings.rubric_path} does not exist: correct the setting judge.rubric.")
    return [*general, *own, *files]


def _problems_of(settings: Settings, key: PartitionKey | None) -> list[str]:
    found = []
    for options, check in CHECKS.items():
        try:
            check(resolve(settings, options, key).options)
        except PipelineError as error:
            found.append(str(error))
    if key:
        try:
            settings.reading(key)
        except PipelineError as error:
            found.append(str(error))
    return found


def unknown_agents(settings: Settings, partitions: Iterable[PartitionKey]) -> list[str]:
    """A sentence for each agent that has settings, and that no store has."""
    known = [str(key) for key in partitions]
    return [
        f'[agents."{name}"] sets an agent that no store has{did_you_mean(name, known)}' for name in settings.agents if name not in known
    ]


def _judging(config: JudgingConfig) -> None:
    parse_measures(config.measures)
    Policy(config.decided_by, config.when_unjudged, config.score_acceptable, config.score_unacceptable, config.metrics)


def _curation(config: CurationConfig) -> None:
    parse_measures(config.required_measures)
    leak_patterns(config.verdict_leaks)


CHECKS: dict[type[Options], Callable[[Any], object]] = {
    SessionsConfig: lambda config: repair_policy(config.repair),
    JudgingConfig: _judging,
    CurationConfig: _curation,
    SftConfig: lambda config: parse_measures(config.learn_turns_that),
    CoresetConfig: lambda config: check_embeddings(config.embeddings),
}
"""What the room of an asset says about its settings, beyond types and bounds."""
