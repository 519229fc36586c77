"""`python -m benchmarks.speculation PARTITION [TASKS]`: is n-gram speculation worth its place?

llama.cpp can guess the next tokens from an earlier place of the conversation with the same words
(`--spec-type ngram-*`), and check all guesses in one forward pass. No second model is needed, and
the arguments of a call often repeat their conversation. New tasks are played by the latest export,
first without speculation, then with each kind, and once more without. The table shows the time
against the mean of the two plays without speculation, and how many transcripts are equal to theirs.

A turn's confidence needs log-probabilities. The last column counts the turns that still have them.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import xllamacpp

from agent_pipeline.cli.players import open_player
from agent_pipeline.compute.playing import play_by, tasks_to_play
from agent_pipeline.config.settings import load_settings
from agent_pipeline.evaluation.episodes import Episode
from agent_pipeline.keys import parse_key

KINDS = ("", "NGRAM_SIMPLE", "NGRAM_MAP_K", "NGRAM_MAP_K4V", "NGRAM_MOD", "NGRAM_CACHE", "")
SHORT_MATCH, SHORT_GUESS = 3, 8
"""Tokens that must match before a guess, and tokens of a guess. llama.cpp's 12 and 48 suit code."""
MAX_NEW_TOKENS, MAX_LENGTH, MAX_TURNS, SEED_OF_TASKS = 192, 2048, 16, 5001


@contextmanager
def speculating(kind: str) -> Iterator[None]:
    """Let servers of this process guess tokens in this way."""
    original = xllamacpp.CommonParams

    def make_params() -> Any:
        params = original()
        if kind:
            names = xllamacpp.common_speculative_type
            params.speculative.types = [getattr(names, f"COMMON_SPECULATIVE_TYPE_{kind}")]
            for name in ("ngram_simple", "ngram_map_k", "ngram_map_k4v"):
                guess = getattr(params.speculative, name)
                guess.size_n, guess.size_m = SHORT_MATCH, SHORT_GUESS
        return params

    xllamacpp.CommonParams = make_params
    try:
        yield
    finally:
        xllamacpp.CommonParams = original


def spoken(episode: Episode) -> list[tuple[object, list[object]]]:
    """Return the words and the calls of an episode, without the random ids of the calls."""
    return [
        (
            message.get("content"),
            [call["function"] for call in message.get("tool_calls") or ()],
        )
        for message in episode.messages
    ]


def main(partition: str, count: int = 30) -> None:
    """Play the tasks with each kind, and print a table."""
    key, settings = parse_key(partition), load_settings()
    world = settings.world(key)
    assert world, f"{key} has no world"
    tasks = tasks_to_play(world, [], 0, count, SEED_OF_TASKS, like=f"{key.agent}-")
    plays: list[tuple[str, float, list[Episode]]] = []
    for kind in KINDS:
        with speculating(kind):
            player = open_player("gguf", key, 0.0, (MAX_NEW_TOKENS, MAX_LENGTH))
            began = time.perf_counter()
            episodes = play_by(world, tasks, player, MAX_TURNS, 1)
            plays.append((kind or "none", time.perf_counter() - began, episodes))
    without = [seconds for kind, seconds, _ in plays if kind == "none"]
    mean = sum(without) / len(without)
    print("| speculation | seconds | ratio | equal transcripts | turns with confidence |")
    print("|---|---:|---:|---:|---:|")
    for kind, seconds, episodes in plays:
        equal = sum(
            spoken(one) == spoken(other) for one, other in zip(episodes, plays[0][2], strict=True)
        )
        turns = [turn for episode in episodes for turn in episode.confidence]
        known = sum(turn is not None for turn in turns)
        print(
            f"| {kind} | {seconds:.0f} | {seconds / mean:.2f} | {equal} of {len(episodes)} "
            f"| {known} of {len(turns)} |"
        )


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
