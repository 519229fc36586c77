"""The search of the written table `sessions` for private data that redaction left in it, of what was not searched before."""

from collections import Counter
from typing import NamedTuple

import pyarrow.compute as pc

from agent_pipeline.ingestion.seen import SEEN, ids_of, seen_sessions
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline.sessions.tables import row_session, stored_batches, to_rows
from agent_pipeline.storage.lake import Lake


class Scan(NamedTuple):
    """How many sessions there are and how many were searched; the finds by kind, and in which sessions they are."""

    sessions: int
    searched: int
    kinds: Counter[str]
    session_ids: list[str]


def scan_new_sessions(lake: Lake, key: PartitionKey, options: RedactionOptions) -> Scan:
    """Search the sessions that no earlier search found clean; those that are clean now are noted beside the table.

    Raises:
        DataError: there is no table, or it is damaged.
        RedactionError: the detectors cannot be used.
    """
    redactor = Redactor(options)
    seen, file = seen_sessions(lake, key) or (None, None)  # without it, all of the table is searched
    clean = seen.filter(seen["clean"])["session_id"].combine_chunks() if seen is not None else ids_of([])
    kinds: Counter[str] = Counter()
    session_ids: list[str] = []
    sessions = searched = 0
    for batch in stored_batches(file or lake.open("sessions", key)):
        sessions += batch.num_rows
        new = batch.filter(pc.invert(pc.is_in(batch["session_id"], clean)))
        searched += new.num_rows
        for row in to_rows([new]):
            if finds := redactor.finds(row_session(row)).values():
                kinds.update(finds)
                session_ids.append(row["session_id"])
    if seen is not None and options.enabled and searched:
        is_clean = pc.invert(pc.is_in(seen["session_id"], ids_of(session_ids)))
        noted = seen.set_column(seen.schema.get_field_index("clean"), seen.schema.field("clean"), is_clean)
        lake.stage(SEEN, key, noted.to_batches(), noted.schema).commit()
    return Scan(sessions, searched, kinds, session_ids)
