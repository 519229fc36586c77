"""Several processes read disjoint shares of the sessions of a store."""

from pathlib import Path

import pytest

from agent_pipeline.sources import open_source, parse_location
from agent_pipeline_tests.readiness.examined import chat, write_chats


@pytest.mark.parametrize("shares", [1, 2, 3, 9])
@pytest.mark.parametrize("files", [1, 2])
def test_shares_are_disjoint_and_complete(tmp_path: Path, files: int, shares: int) -> None:
    for file in range(files):
        chats = [chat(f"s-{file}-{n}", f"find {n}") for n in range(4)]
        write_chats(tmp_path / f"chats-{file}.jsonl", chats)
    source = open_source(parse_location(str(tmp_path)))
    (key,) = source.partitions()
    parts = [list(source.stored_share(key, remainder, shares)) for remainder in range(shares)]
    session_ids = sorted(stored.session_id for part in parts for stored in part)
    everything = {stored.session_id: stored.digest for stored in source.stored(key)}
    assert session_ids == sorted(everything) and len(session_ids) == 4 * files
    assert {stored.session_id: stored.digest for part in parts for stored in part} == everything
