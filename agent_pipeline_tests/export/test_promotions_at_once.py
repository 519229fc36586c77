"""Promotions and rollbacks that are killed, or made by two at once: never two champions, never none, the history whole."""

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.champions import EXPORT, export_named, promote, rollback
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.lake import Lake

KEY = PartitionKey("shop", "support")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def exports(lake: Lake, count: int) -> list[str]:
    identities = [hash_json(number) for number in range(count)]
    for identity in identities:
        lake.set_latest(
            lake.finish(
                EXPORT,
                KEY,
                identity,
                lake.building(EXPORT, KEY, identity),
                {"adapter": identity},
                {},
            )
        )
    return identities


def check_history(lake: Lake, identities: list[str]) -> None:
    """Every entry follows from the one before it, and its champion is an export."""
    history = lake.history(EXPORT, KEY)
    assert [entry.generation for entry in history] == list(range(1, len(history) + 1))
    champions = [
        (before.champion, entry) for before, entry in pairwise(history) if entry.moved == "champion"
    ]
    assert champions and all(
        entry.against == before and entry.champion in identities for before, entry in champions
    )
    champion = lake.champion(EXPORT, KEY)
    assert champion is not None and champion.identity == history[-1].champion


def test_a_promotion_or_rollback_that_is_killed_at_any_moment_leaves_one_champion(
    lake: Lake,
) -> None:
    identities = exports(lake, 3)
    promote(lake, KEY, identities[0])
    dice = random.Random(0)
    for _ in range(100):
        if (child := os.fork()) == 0:
            try:
                while True:
                    promote(lake, KEY, dice.choice(identities))
                    with suppress(DataError):
                        rollback(lake, KEY)
            finally:
                os._exit(1)
        time.sleep(dice.random() / 50)
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        assert lake.pointers(EXPORT, KEY).champion in identities
    check_history(lake, identities)
    promote(lake, KEY, identities[0], why="nothing is locked")
    promote(lake, KEY, identities[1])


def test_of_two_promotions_at_once_each_sees_the_other_or_is_refused(lake: Lake) -> None:
    identities = exports(lake, 2)

    def decide(identity: str, generation: int) -> bool:
        try:
            lake.set_champion(export_named(lake, KEY, identity), expected=generation)
        except DataError:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        for number in range(100):
            before = lake.pointers(EXPORT, KEY)
            done = list(pool.map(decide, identities, [before.generation] * 2))
            assert any(done) and lake.pointers(EXPORT, KEY).generation == before.generation + 1, (
                f"round {number}"
            )
    check_history(lake, identities)
