"""What follows when a person moves a champion, in a shell or in the UI: it is served, MLflow is given it, and people are told."""

from agent_pipeline.config.assets import ServingConfig
from agent_pipeline.config.notices import moved_by_hand, tell
from agent_pipeline.config.resolution import resolve
from agent_pipeline.config.settings import Settings
from agent_pipeline.export.ledger import EXPORT
from agent_pipeline.export.mlflow_runs import write_run
from agent_pipeline.export.serving import serve_champion, unfit
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.pointers import Entry


def follow(settings: Settings, key: PartitionKey, entry: Entry) -> tuple[list[str], list[str]]:
    """Serve the champion of a partition after the change `entry`; people are told only if something moved. Returns what a person must hear,
    and what else there is to say. Raises as `serve`."""
    lake = settings.open_lake()
    champion = lake.champion(EXPORT, key)
    against = unfit(lake, key, champion) if champion else []
    warnings = [f"It is not fit to act unwatched: {'; '.join(against)}."] if against else []
    lines = serve_champion(lake, key, **resolve(settings, ServingConfig, key).options.model_dump())
    if written := write_run(lake, key):
        (lines if written.ok else warnings).append(written.text)
    if entry.moved and (problem := tell(settings, [moved_by_hand(str(key), entry)])):
        warnings.append(problem)
    return warnings, lines
