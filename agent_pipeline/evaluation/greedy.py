"""Greedy answers, verified instead of generated where they are the expected ones.

Greedy decoding gives an expected text exactly where, at each of its positions, the likeliest next token is the text's next. The pass over
the expected texts that computes their loss holds these tokens, so only what follows the first deviation is generated.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_pipeline.evaluation.generate import generate
from agent_pipeline.progress import Progress, silent

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Continuation:
    """What a model writes after a prompt, its end token left out. `cut`: the limit ended it; `verified`: it is the expected text,
    and nothing had to be generated."""

    tokens: list[int]
    cut: bool
    verified: bool = False


def greedy(
    model: "PreTrainedModel",
    prompts: Sequence[list[int]],
    limits: Sequence[int],
    stops: Collection[int],
    expected: Sequence[list[int]] | None = None,
    best: "Sequence[np.ndarray] | None" = None,
    progress: Progress = silent,
    text: str = "turns answered",
) -> list[Continuation]:
    """The greedy continuation of each prompt, of at most `limits[i]` tokens.

    `expected[i]` are the tokens of a text that may follow prompt i, and `best[i]` the likeliest token in each one's place, given those
    before it. A continuation that is the whole expected text may be longer than its limit.
    """
    begun: list[list[int]] = [[] for _ in prompts]
    finished = [False] * len(prompts)
    for index, (some, likeliest) in enumerate(zip(expected or (), best or (), strict=True)):
        begun[index], finished[index] = verified_beginning(some, likeliest.tolist(), stops)
    open_ones = [index for index in range(len(prompts)) if not finished[index] and len(begun[index]) < limits[index]]
    rest = generate(
        model,
        [prompts[index] + begun[index] for index in open_ones],
        [limits[index] - len(begun[index]) for index in open_ones],
        stops,
        progress,
        text,
    )
    whole = dict(zip(open_ones, (begun[index] + new for index, new in zip(open_ones, rest, strict=True)), strict=True))
    return [
        Continuation(begun[index], False, expected is not None and set(expected[index][len(begun[index]) :]) <= set(stops))
        if finished[index]
        else Continuation(tokens := whole.get(index, begun[index])[: limits[index]], len(tokens) == limits[index])
        for index in range(len(prompts))
    ]


def verified_beginning(expected: Sequence[int], best: Sequence[int], stops: Collection[int]) -> tuple[list[int], bool]:
    """What greedy decoding writes up to and with the first token that is not the expected one, and whether it ends there."""
    for position, (token, likeliest) in enumerate(zip(expected, best, strict=True)):
        if likeliest in stops:
            return list(expected[:position]), True
        if likeliest != token:
            return [*expected[:position], likeliest], False
    return list(expected), False
