"""Search for private data that redaction left in the written table `sessions`.

Only sessions that no earlier search found clean are searched. There are two searches, so that a
mistake of the detectors does not go unnoticed. First, the detectors search the written sessions.
Second, the private values of the sessions in the store are searched for in the written sessions, in
every form. The search of derived tables belongs to `derived`.
"""

from collections import Counter
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.ingestion.reading import Preparation, ReadingOptions
from agent_pipeline.ingestion.seen_sessions import SEEN_TABLE, make_id_column, read_seen_sessions
from agent_pipeline.ingestion.table_pass import PrivateValues
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline.sessions.tables import read_batches, restore_session, to_rows
from agent_pipeline.sources.base import TraceSource
from agent_pipeline.storage.lake import Lake


@dataclass(frozen=True)
class PrivacyScan:
    """The result of searching a table for private data.

    Attributes:
        sessions: Number of sessions in the table.
        searched: Number of sessions that were searched.
        kinds: Counts of the private values that were found, by kind.
        session_ids: Ids of the sessions with private values.
    """

    sessions: int
    searched: int
    kinds: Counter[str]
    session_ids: list[str]


def scan_new_sessions(
    lake: Lake,
    key: PartitionKey,
    options: RedactionOptions,
    source: TraceSource | None = None,
    reading: ReadingOptions | None = None,
) -> PrivacyScan:
    """Search sessions that no earlier search found clean for private data, and note the result.

    Args:
        lake: The lake with the table.
        key: The partition to search.
        options: The options that define what is private.
        source: The store of the table. Its private values are also searched for, in sessions that
            have not changed since they were read.
        reading: The options with which the store was read.

    Raises:
        DataError: The table is missing or damaged.
        RedactionError: The detectors cannot be used.
        StoreError: The store cannot be read.
    """
    redactor = Redactor(options)
    last = read_seen_sessions(lake, key)  # without notes, the whole table is searched
    seen = last.seen if last else None
    clean_ids = make_id_column([])
    if seen is not None:
        clean_ids = seen.filter(seen["clean"])["session_id"].combine_chunks()
    store_values: PrivateValues = {}
    if source and options.enabled:
        reading = reading or ReadingOptions(redaction=options)
        store_values = _find_values_in_store(source, key, reading, redactor, seen)
    kinds: Counter[str] = Counter()
    private_ids: list[str] = []
    sessions = searched = 0
    for batch in read_batches(last.file if last else lake.open("sessions", key)):
        sessions += batch.num_rows
        unsearched = batch.filter(pc.invert(pc.is_in(batch["session_id"], clean_ids)))
        searched += unsearched.num_rows
        for row in to_rows([unsearched]):
            session = restore_session(row)
            session_kinds = Counter(redactor.finds(session).values())
            values = store_values.get(session.session_id)
            if values:
                session_kinds |= redactor.remaining(session, values)
            if session_kinds:
                kinds.update(session_kinds)
                private_ids.append(session.session_id)
    if seen is not None and options.enabled and searched:
        _note_clean_sessions(lake, key, seen, private_ids)
    return PrivacyScan(sessions, searched, kinds, private_ids)


def _note_clean_sessions(
    lake: Lake, key: PartitionKey, seen: pa.Table, private_ids: list[str]
) -> None:
    """Record that all sessions are clean, except for the given sessions.

    Args:
        lake: The lake.
        key: The partition.
        seen: The table `sessions_seen`.
        private_ids: The sessions with private values.
    """
    is_clean = pc.invert(pc.is_in(seen["session_id"], make_id_column(private_ids)))
    index = seen.schema.get_field_index("clean")
    noted = seen.set_column(index, seen.schema.field(index), is_clean)
    lake.stage(SEEN_TABLE, key, noted.to_batches(), noted.schema).commit()


def _find_values_in_store(
    source: TraceSource,
    key: PartitionKey,
    reading: ReadingOptions,
    redactor: Redactor,
    seen: pa.Table | None,
) -> PrivateValues:
    """Return the private values in those stored sessions that no earlier search found clean.

    Args:
        source: The store.
        key: The partition.
        reading: The options with which the store was read.
        redactor: Finds the values.
        seen: The table `sessions_seen`. Sessions that changed since they were read are left out.
            None searches the whole store.
    """
    digests: dict[str, bytes] = {}
    if seen is not None:
        unsearched = seen.filter(pc.invert(seen["clean"]))
        if not unsearched.num_rows:
            return {}
        ids = unsearched["session_id"].to_pylist()
        digests = dict(zip(ids, unsearched["digest"].to_pylist(), strict=True))
    preparation = Preparation(reading)
    values_by_session: PrivateValues = {}
    for stored in source.stored(key):
        if seen is not None and digests.get(stored.session_id) != stored.digest:
            continue
        session = stored.build()
        preparation.complete(session)
        values = redactor.finds(session)
        if values:
            values_by_session[stored.session_id] = values
    return values_by_session
