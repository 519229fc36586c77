"""The steps after a user moves a champion in a shell or in the UI.

The champion is served, MLflow gets its record, and people are notified. A command may be killed
after the pointer moved and before the served folder was written. The next `promote`, `rollback` or
`models list` completes it.

Which export may become the champion does not belong here (`agent_pipeline.promotion`).
"""

from agent_pipeline.config.assets import ServingConfig
from agent_pipeline.config.resolution import resolve
from agent_pipeline.config.settings import Settings
from agent_pipeline.errors import PipelineError
from agent_pipeline.governance.played_world import find_world_in_force
from agent_pipeline.keys import PartitionKey
from agent_pipeline.notifications import describe_manual_move, send_notifications
from agent_pipeline.promotion.champions import (
    interrupted_rollback,
    serve_champion,
    serving_difference,
    unfit,
)
from agent_pipeline.promotion.episodes_in_force import DecidingWorld
from agent_pipeline.promotion.ledger import EXPORT
from agent_pipeline.promotion.mlflow_runs import write_run
from agent_pipeline.redaction import Redactor
from agent_pipeline.storage.lake import Lake
from agent_pipeline.storage.pointers import Entry

_REPAIRED = (
    "an earlier command was interrupted, or the disk is failing. The champion is served again now."
)


def follow(settings: Settings, key: PartitionKey, entry: Entry) -> tuple[list[str], list[str]]:
    """Serve the champion of a partition after the change `entry`.

    Notify people if the champion moved. Damaged recordings or episodes stop nothing.

    The caller shows the result, and calls `complete_move` afterwards.

    Returns:
        The warnings for a person, and other lines for a person.

    Raises:
        The errors of `serve`.
    """
    lake = settings.open_lake()
    champion = lake.champion(EXPORT, key)
    deciding_world = find_world_in_force(settings, lake, key)
    against = unfit(lake, key, champion, deciding_world) if champion else []
    warnings = [f"It is not fit to act unattended: {'; '.join(against)}."] if against else []
    if deciding_world.is_unreadable:
        warnings.append(f"Its episodes do not count, because {deciding_world.why_not}.")
    interrupted = interrupted_rollback(lake, key) if not entry.moved else None
    if interrupted:
        warnings.append(
            f"The rollback by {interrupted.who} at {interrupted.when} was interrupted. It is "
            "completed now, and nothing else was rolled back: to go further back, run "
            f"`agent-pipeline rollback {key}` again."
        )
    elif not entry.moved and (difference := serving_difference(lake, key)):
        warnings.append(f"{difference}: {_REPAIRED}")
    lines = _serve(settings, lake, key, deciding_world)
    redactor = Redactor(settings.redaction_options)
    if written := write_run(lake, key, redactor, deciding_world):
        (lines if written.ok else warnings).append(written.text)
    moved = entry if entry.moved else interrupted
    if moved and (
        problem := send_notifications(
            settings.notify.urls,
            [describe_manual_move(str(key), moved)],
            settings.redaction_options,
        )
    ):
        warnings.append(problem)
    return warnings, lines


def _serve(
    settings: Settings, lake: Lake, key: PartitionKey, deciding_world: DecidingWorld
) -> list[str]:
    places = resolve(settings, ServingConfig, key).options.model_dump()
    redactor = Redactor(settings.redaction_options)
    return serve_champion(lake, key, redactor, deciding_world, **places)


def complete_interrupted_moves(
    settings: Settings, lake: Lake, keys: list[PartitionKey]
) -> list[str]:
    """Serve the champion of each partition whose serving folder does not contain it.

    Returns:
        A sentence for each of these partitions.
    """
    sentences = []
    for key in keys:
        try:
            difference, rolled_back = serving_difference(lake, key), interrupted_rollback(lake, key)
            if difference:
                _serve(settings, lake, key, find_world_in_force(settings, lake, key))
        except (PipelineError, OSError) as error:
            sentences.append(
                f"{key}: what is served cannot be compared with the champion, or brought up to "
                f"date: {error}"
            )
        else:
            if difference:
                sentences.append(
                    f"{key}: {difference}. A command or a run was interrupted, or the disk is "
                    "failing. The champion is served again now."
                )
            elif rolled_back:
                sentences.append(
                    f"{key}: the rollback by {rolled_back.who} at {rolled_back.when} was "
                    "interrupted after it was done."
                )
    return sentences
