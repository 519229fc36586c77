"""The search of the written table `sessions` for private data that redaction left in it, of what was not searched before.

Two searches, so that a mistake of the detectors is not made twice: the detectors search the written sessions; and the private values of
the sessions in the store are searched for in the written ones, in every form.
"""

from collections import Counter
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.ingestion.reading import Preparation, ReadingOptions
from agent_pipeline.ingestion.seen_sessions import SEEN_TABLE, make_id_column, read_seen_sessions
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline.sessions.tables import read_batches, restore_session, to_rows
from agent_pipeline.sources.base import TraceSource
from agent_pipeline.storage.lake import Lake


class PrivacyScan(NamedTuple):
    """How many sessions there are and how many were searched; the finds by kind, and in which sessions they are."""

    sessions: int
    searched: int
    kinds: Counter[str]
    session_ids: list[str]


_PrivateValues = dict[str, dict[str, str]]
"""The private values of sessions with their kinds, by the sessions' ids."""


def scan_new_sessions(
    lake: Lake,
    key: PartitionKey,
    options: RedactionOptions,
    source: TraceSource | None = None,
    reading: ReadingOptions | None = None,
) -> PrivacyScan:
    """Search the sessions that no earlier search found clean; those that are clean now are noted beside the table.

    Args:
        lake: Where the table is.
        key: The partition to search.
        options: What is private.
        source: The store that the table was made from. Its private values are searched for too, of sessions that did not change since.
        reading: How the store was read.

    Raises:
        DataError: there is no table, or it is damaged.
        RedactionError: the detectors cannot be used.
        StoreError: the store cannot be read.
    """
    redactor = Redactor(options)
    seen, file = read_seen_sessions(lake, key) or (
        None,
        None,
    )  # without it, all of the table is searched
    clean = (
        seen.filter(seen["clean"])["session_id"].combine_chunks()
        if seen is not None
        else make_id_column([])
    )
    kinds: Counter[str] = Counter()
    session_ids: list[str] = []
    sessions = searched = 0
    values = (
        _values_in_store(source, key, reading or ReadingOptions(redaction=options), redactor, seen)
        if source and options.enabled
        else {}
    )
    for batch in read_batches(file or lake.open("sessions", key)):
        sessions += batch.num_rows
        new = batch.filter(pc.invert(pc.is_in(batch["session_id"], clean)))
        searched += new.num_rows
        for row in to_rows([new]):
            session = restore_session(row)
            finds = Counter(redactor.finds(session).values())
            if private := values.get(session.session_id):
                finds |= redactor.remaining(session, private)
            if finds:
                kinds.update(finds)
                session_ids.append(session.session_id)
    if seen is not None and options.enabled and searched:
        is_clean = pc.invert(pc.is_in(seen["session_id"], make_id_column(session_ids)))
        noted = seen.set_column(
            seen.schema.get_field_index("clean"), seen.schema.field("clean"), is_clean
        )
        lake.stage(SEEN_TABLE, key, noted.to_batches(), noted.schema).commit()
    return PrivacyScan(sessions, searched, kinds, session_ids)


def _values_in_store(
    source: TraceSource,
    key: PartitionKey,
    reading: ReadingOptions,
    redactor: Redactor,
    seen: pa.Table | None,
) -> _PrivateValues:
    """Return the private values of the sessions in the store that were not found clean before, and did not change since they were read."""
    digests: dict[str, bytes] = {}
    if seen is not None:
        new = seen.filter(pc.invert(seen["clean"]))
        if not new.num_rows:
            return {}
        digests = dict(zip(new["session_id"].to_pylist(), new["digest"].to_pylist(), strict=True))
    preparation, values = Preparation(reading), _PrivateValues()
    for stored in source.stored(key):
        if seen is not None and digests.get(stored.session_id) != stored.digest:
            continue
        session = stored.build()
        preparation.complete(session)
        if private := redactor.finds(session):
            values[stored.session_id] = private
    return values
