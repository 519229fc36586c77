"""Greedy decoding that verifies the expected answer instead of generating it.

The greedy answer is the expected text if the likeliest token at each position is the expected
token. The forward pass that computes the loss of the expected texts already yields these likeliest
tokens, and the keys and values of all earlier tokens. So only the tokens after the first difference
are generated, and no prompt is read twice.
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
    """The tokens that a model generates after a prompt.

    Attributes:
        tokens: The tokens without the end token.
        cut: Whether the token limit ended the text.
        verified: Whether the text is the expected text, so that nothing was generated.
    """

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
    """Return the greedy continuation of each prompt.

    Args:
        model: The model.
        prompts: The tokens of each prompt.
        limits: The maximum number of new tokens for each prompt.
        stops: The tokens that end a continuation.
        progress: A callback that reports progress.
        text: The label of the progress.
    """
    writer = Writer(model, stops, progress, text)
    for number, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
        writer.add(number, prompt, limit)
    return writer.continuations()


class Writer:
    """A writer of greedy continuations.

    The writer generates only the continuations that cannot be verified without generation.

    Continuations are generated in batches.
    """

    def __init__(
        self,
        model: "PreTrainedModel",
        stops: Collection[int],
        progress: Progress = silent,
        text: str = "turns answered",
    ):
        self._model, self._stops, self._progress, self._text = model, stops, progress, text
        self._open: list[_Open] = []
        self._held = 0  # bytes of the keys and values of the open prompts
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
        """Add a prompt to the prompts that are continued greedily.

        Prompts are collected until their keys and values take `CACHE_BYTES`, so that prompts of
        similar length are generated together.

        Args:
            number: The number of the continuation.
            prompt: The tokens of the prompt.
            limit: The maximum number of new tokens. A continuation that is the whole expected text
                may be longer.
            expected: The tokens of a text that may follow the prompt.
            best: The likeliest token at each position of `expected`, given the expected tokens
                before it.
            read: The keys and values of the prompt and of `expected`.
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
        """Return all continuations, in the order of the numbers of their prompts."""
        self._write()
        return [self._written[number] for number in sorted(self._written)]

    def _write(self) -> None:
        prompts = [answer.prompt + answer.begun for answer in self._open]
        limits = [answer.limit - len(answer.begun) for answer in self._open]
        read = (
            [answer.read for answer in self._open]
            if any(answer.read for answer in self._open)
            else []
        )
        progress = silent if read else self._report
        rest = generate(self._model, prompts, limits, self._stops, progress, read)
        for answer, new in zip(self._open, rest, strict=True):
            self._written[answer.number] = Continuation(
                [*answer.begun, *new], len(answer.begun) + len(new) == answer.limit
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
    """Return the greedy tokens until they differ from the expected text.

    Also return whether the model ended its answer.

    The first differing token is included.

    Args:
        expected: The tokens of the expected text.
        best: The likeliest token at each position of the expected text.
        stops: The tokens that end a text.
    """
    for position, (token, likeliest) in enumerate(zip(expected, best, strict=True)):
        if likeliest in stops:
            return list(expected[:position]), True
        if likeliest != token:
            return [*expected[:position], likeliest], False
    return list(expected), False


def writes(expected: Sequence[int], best: Sequence[int], stops: Collection[int]) -> bool:
    """Return whether greedy decoding writes exactly the expected text and then ends the answer.

    Args:
        expected: The tokens of the expected text.
        best: The likeliest token at each position of the expected text.
        stops: The tokens that end a text.
    """
    begun, finished = verified_beginning(expected, best, stops)
    return finished and bool(expected) and set(expected[len(begun) :]) <= set(stops)
