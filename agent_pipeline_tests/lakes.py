"""What a test puts into a lake."""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from agent_pipeline.datasets.sft import SFT
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.sessions.tables import JUDGED, to_table
from agent_pipeline.storage.artifacts import ArtifactDetails
from agent_pipeline.storage.lake import Artifact, Lake


def artifact(
    lake: Lake,
    asset: str,
    key: PartitionKey,
    made_from: dict[str, Any] | None = None,
    files: Mapping[str, str | bytes] | None = None,
    report: dict[str, Any] | None = None,
    identity: str = "",
    latest: bool = True,
    **finished: Any,
) -> Artifact:
    """A finished artifact with these files; its partition's latest unless it failed its check or `latest` says otherwise."""
    identity = identity or hash_json([asset, made_from])
    building = lake.building(asset, key, identity)
    for name, content in (files or {}).items():
        (building / name).parent.mkdir(exist_ok=True)
        (building / name).write_bytes(content.encode() if isinstance(content, str) else content)
    details = ArtifactDetails(**finished)
    made = lake.finish(asset, key, identity, building, made_from or {}, report or {}, details)
    if latest and made.passed:
        lake.set_latest(made)
    return made


def put_rows(lake: Lake, key: PartitionKey, rows: Iterable[dict[str, Any]]) -> None:
    """Rows of the tiny world as `sft_dataset`, and their sessions as `judged_sessions`."""
    rows = [
        each | {"content_sha256": hash_json(each["messages"]), "trial": "0", "broken": None}
        for each in rows
    ]
    judged = pa.schema(
        [JUDGED.field(name) for name in ("session_id", "task_key", "trial", "broken", "messages")]
    )
    for asset, schema in (("sft_dataset", SFT), ("judged_sessions", judged)):
        lake.stage(asset, key, to_table(rows, schema).to_batches(), schema).commit()
