"""Greedy answers, verified instead of generated where they are the expected ones.

Greedy decoding gives an expected text exactly where, at each of its positions, the likeliest next token is the text's next. The pass over
the expected texts that computes their loss holds these tokens, and the keys and values of all before them, so only what follows the first
deviation is generated, and no prompt is read twice.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_pipeline.engine.generation import CACHE_BYTES, generate
from agent_pipeline.engine.scoring import ReadTokens
from agent_pipeline.progress import Progress, silent

if TYPE_CHECKING:
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
    progress: Progress = silent,
    text: str = "turns answered",
) -> list[Continuation]:
    """The greedy continuation of each prompt, of at most `limits[i]` tokens."""
    writer = Writer(model, stops, progress, text)
    for number, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
        writer.add(number, prompt, limit)
    return writer.continuations()


class Writer:
    """Writes greedy continuations of prompts: those that are verified at once, the others in batches."""

    def __init__(
        self,
        model: "PreTrainedModel",
        stops: Collection[int],
        progress: Progress = silent,
        text: str = "turns answered",
    ):
        self._model, self._stops, self._progress, self._text = model, stops, progress, text
        self._open: list[_Open] = []
        self._held = 0  # bytes of what was read of those
        self._written: dict[int, Continuation] = {}

    def add(
        self,
        number: int,
        prompt: list[int],
        limit: int,
        expected: Sequence[int] = (),
        best: Sequence[int] = (),
        read: ReadTokens | None = None,
    ) -> None:
        """Ask for the continuation of a prompt, of at most `limit` tokens.

        `expected` are the tokens of a text that may follow the prompt, and `best` the likeliest token in each one's place, given those
        before it. A continuation that is the whole expected text may be longer than its limit. `read` is what the model has read of both.
        Prompts are gathered until that takes `CACHE_BYTES`: of many, those of alike lengths are written together.
        """
        begun, finished = verified_beginning(expected, best, self._stops)
        if finished:
            self._written[number] = Continuation(begun, False, writes(expected, best, self._stops))
        elif len(begun) >= limit:
            self._written[number] = Continuation(begun[:limit], True)
        else:
            self._open.append(_Open(number, prompt, begun, limit, read))
            self._held += read.nbytes if read else 0
        if self._held >= CACHE_BYTES:
            self._write()

    def continuations(self) -> list[Continuation]:
        """All of them, in the order of their numbers."""
        self._write()
        return [self._written[number] for number in sorted(self._written)]

    def _write(self) -> None:
        prompts = [each.prompt + each.begun for each in self._open]
        limits = [each.limit - len(each.begun) for each in self._open]
        read = [each.read for each in self._open] if any(each.read for each in self._open) else []
        progress = silent if read else self._report
        rest = generate(self._model, prompts, limits, self._stops, progress, read)
        for each, new in zip(self._open, rest, strict=True):
            self._written[each.number] = Continuation(
                [*each.begun, *new], len(each.begun) + len(new) == each.limit
            )
        self._open, self._held = [], 0

    def _report(self, done: int, total: int, _: str) -> None:
        self._progress(done, total, self._text)


@dataclass(frozen=True)
class _Open:
    number: int
    prompt: list[int]
    begun: list[int]
    limit: int
    read: ReadTokens | None


def verified_beginning(
    expected: Sequence[int], best: Sequence[int], stops: Collection[int]
) -> tuple[list[int], bool]:
    """What greedy decoding writes up to and with the first token that is not the expected one, and whether it ends there."""
    for position, (token, likeliest) in enumerate(zip(expected, best, strict=True)):
        if likeliest in stops:
            return list(expected[:position]), True
        if likeliest != token:
            return [*expected[:position], likeliest], False
    return list(expected), False


def writes(expected: Sequence[int], best: Sequence[int], stops: Collection[int]) -> bool:
    """Whether greedy decoding writes the expected text, token for token, and ends there."""
    begun, finished = verified_beginning(expected, best, stops)
    return finished and bool(expected) and set(expected[len(begun) :]) <= set(stops)
