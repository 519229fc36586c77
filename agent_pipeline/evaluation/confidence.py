"""The confidence of a model in its turns, measured from the log-probabilities of its tokens.

The words before a call already determine the call. A token of the call itself is therefore likely
even if the call is wrong, and only the words distinguish a wrong write from a right write. The
player of an endpoint reads the log-probabilities (`players`), and the figures of all episodes are
in `reports.confidence_report`.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from agent_pipeline.sessions.session import Message

UNSURE_PROBABILITY = 0.7
"""A turn is unsure if one of its tokens has a smaller probability."""

NEARLY_IMPOSSIBLE = 0.001
"""A token with a smaller probability counts as forced if the model samples with a temperature."""


class TokenScore(NamedTuple):
    """A token that a server chose, with its log-probability before any grammar.

    Attributes:
        text: The text of the token.
        log_probability: The log-probability of the token.
        most_likely: The log-probability of the model's likeliest token at this position.
    """

    text: bytes
    log_probability: float
    most_likely: float


class TurnConfidence(msgspec.Struct, frozen=True):
    """The confidence of a model in one turn.

    Attributes:
        words: The sum of the log-probabilities of the words before a call. If the turn has no call
            or no words, the sum of all tokens of the turn.
        least: The smallest log-probability of a token of the turn.
        forced: Whether a grammar forced a token that the model would not have written.
        writes: Whether the turn calls a tool that changes the world.
    """

    words: float
    least: float
    forced: bool = False
    writes: bool = False

    @property
    def is_unsure(self) -> bool:
        """Return whether a token of the turn has a probability below `UNSURE_PROBABILITY`."""
        return self.least < math.log(UNSURE_PROBABILITY)


class ScoredWrite(NamedTuple):
    """The confidence of an episode's least confident write, and whether a write was wrong."""

    confidence: float
    is_wrong: bool


def measure_turn(
    tokens: Sequence[TokenScore], words: str, is_greedy: bool
) -> TurnConfidence | None:
    """Return the confidence of a turn, or `None` if there are no log-probabilities.

    Args:
        tokens: The tokens of the turn in order.
        words: The words before a call. Empty if the turn has no call.
        is_greedy: Whether the server chose the likeliest token that the grammar allows.
    """
    if not tokens:
        return None
    scores = [token.log_probability for token in tokens]
    return TurnConfidence(
        words=math.fsum(scores[: count_word_tokens(tokens, words)]),
        least=min(scores),
        forced=any(
            token.log_probability < token.most_likely
            if is_greedy
            else token.log_probability < math.log(NEARLY_IMPOSSIBLE)
            for token in tokens
        ),
    )


def read_confidence(choice: Any, message: Message, is_greedy: bool) -> TurnConfidence | None:
    """Return the confidence of a choice, or `None` if the server returned no log-probabilities.

    llama.cpp returns the log-probabilities before its grammar. A token that the grammar forced is
    therefore less likely than the likeliest token at its position.

    Args:
        choice: The choice as the client returned it.
        message: The message of the choice.
        is_greedy: Whether the server chose the likeliest token that the grammar allows.
    """
    content = getattr(getattr(choice, "logprobs", None), "content", None) or ()
    try:
        tokens = [
            TokenScore(
                bytes(entry.bytes) if entry.bytes is not None else entry.token.encode(),
                float(entry.logprob),
                max([entry.logprob, *(other.logprob for other in entry.top_logprobs or ())]),
            )
            for entry in content
        ]
    except (AttributeError, TypeError, ValueError):  # another server's form
        return None
    words = ""
    if message.get("tool_calls"):
        thought = getattr(choice.message, "reasoning_content", None)
        words = message["content"] or (thought if isinstance(thought, str) else "")
    return measure_turn(tokens, words, is_greedy)


def count_word_tokens(tokens: Sequence[TokenScore], words: str) -> int:
    """Return the number of tokens up to the end of the words.

    If the text of the tokens does not contain the words, the result is the number of all tokens.
    """
    written, wanted = b"".join(token.text for token in tokens), words.strip().encode()
    start = written.find(wanted) if wanted else -1
    if start < 0:
        return len(tokens)
    end, length = start + len(wanted), 0
    for index, token in enumerate(tokens):
        if length >= end:
            return index
        length += len(token.text)
    return len(tokens)


def choose_threshold(writes: Sequence[ScoredWrite], most_wrong: int = 0) -> float:
    """Return the smallest threshold that lets at most `most_wrong` wrong writes pass.

    A write passes if its confidence is at least the threshold. Choose the threshold on some tasks,
    and measure it on other tasks. A write with a lower confidence than every measured write does
    not pass, because nothing is known about such writes.

    Args:
        writes: The measured writes.
        most_wrong: The number of wrong writes that may pass.

    Returns:
        The threshold, or infinity if no threshold passes any of the writes.
    """
    threshold = math.inf
    for confidence in sorted({write.confidence for write in writes}, reverse=True):
        if sum(write.is_wrong for write in writes if write.confidence >= confidence) > most_wrong:
            break
        threshold = confidence
    return threshold


def measure_area(writes: Sequence[ScoredWrite]) -> float | None:
    """Return the area under the ROC curve of the confidence, or `None` without both kinds of write.

    The area is the probability that a right write has a higher confidence than a wrong write. 0.5
    means that the confidence says nothing.
    """
    wrong = [write.is_wrong for write in writes]
    if all(wrong) or not any(wrong):
        return None
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(wrong, [-write.confidence for write in writes]))
