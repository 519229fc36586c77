"""Measurement of how probable a model considers the decisions that an agent logged.

A decision is which tools a turn calls, or that the turn answers. A probe needs one forward pass and
no generation. What follows from a measurement belongs to `trainers.preferences` and `evaluation`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from typing import TYPE_CHECKING

from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.engine.scoring import compute_losses
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.sessions.json_text import decode_arguments
from agent_pipeline.sessions.session import Message, dump_canonical_json, hash_json, is_trained
from agent_pipeline.tokenization.encoding import encode_row, split_into_trained_rows
from agent_pipeline.tokenization.loss_masks import Encoded

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ANSWER = "answer"

MIN_TURNS_PER_KIND = 4
"""Minimum number of turns of a kind of decision. A kind with fewer turns is neither reported nor
judged.

One turn would be a large share of the kind.
"""


@dataclass(frozen=True)
class Probe:
    """A turn whose decision is measured under a model.

    Attributes:
        kind: The kind of decision, such as `user → find_orders`.
        encoded: The tokens. The probability of the trained tokens is that of the decision.
        refuted: Whether the trained tokens are those of the opposite decision. An answer is any
            text that does not begin as a call does, so the beginning of a call is measured.
    """

    kind: str
    encoded: Encoded
    refuted: bool


@dataclass(frozen=True)
class _Turn:
    """An assistant turn of a row, as tokens.

    Attributes:
        order: A hash by which turns are chosen.
        kind: The kind of decision.
        message: The message.
        ids: The tokens of the row.
        start: The first token of the turn behind its thought.
        stop: The token behind the turn.
        has_thought: Whether the turn begins with a thought.
    """

    order: str
    kind: str
    message: Message
    ids: list[int]
    start: int
    stop: int
    has_thought: bool

    @property
    def tokens(self) -> list[int]:
        """Return the tokens of the turn that follow its thought."""
        return self.ids[self.start : self.stop]

    @property
    def is_call(self) -> bool:
        """True if the turn calls tools."""
        return bool(self.message.get("tool_calls"))

    @property
    def has_words(self) -> bool:
        """True if the turn has content besides calls."""
        return bool(self.message.get("content"))


def name_decision(message: Message) -> str:
    """Return the names of the tools that a message calls, or `answer`."""
    names = sorted(call["function"]["name"] for call in message.get("tool_calls") or ())
    return "+".join(names) or ANSWER


def is_same_decision(first: Message, second: Message) -> bool:
    """Return whether two messages make the same calls in any order, or both make no call."""
    return _calls(first) == _calls(second)


def _calls(message: Message) -> list[str]:
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return sorted(
        dump_canonical_json([function["name"], decode_arguments(function["arguments"])])
        for function in functions
    )


def name_kind(messages: Sequence[Message], position: int) -> str:
    """Return the kind of a decision: the message before it, and the decision of the message.

    Examples are `user → find_orders`, `find_orders → refund` and `refund → answer`.

    Args:
        messages: The conversation.
        position: The index of the message.
    """
    previous: str = messages[position - 1]["role"] if position else "nothing"
    if previous == "tool":
        for message in reversed(messages[:position]):
            if message["role"] == "assistant":
                previous = name_decision(message)
                break
    return f"{previous} → {name_decision(messages[position])}"


def find_probes(
    renderer: ChatRenderer,
    rows: Iterable[DatasetRow],
    max_length: int,
    most_per_kind: int,
) -> list[Probe]:
    """Return probes for SFT rows, chosen by hash.

    A call is decided where it begins, which may be behind words of the same turn. An answer is
    decided where a call would begin: at its first token or, if agents speak before they call, at
    its end. If there is no call without words, nothing can be measured.

    Args:
        renderer: The renderer of the model.
        rows: SFT rows. Rows that cannot be trained on are left out.
        max_length: Tokens per row.
        most_per_kind: Maximum number of probes per kind of decision.
    """
    turns = _skip_common_beginning(_find_turns(renderer, rows, max_length))
    calls = [turn for turn in turns if turn.is_call]
    openers = Counter(turn.ids[turn.start] for turn in calls if not turn.has_words)
    if not openers:
        return []
    opener = max(openers, key=lambda token: (openers[token], token))
    speaks_first = any(turn.has_words for turn in calls)
    counts: Counter[str] = Counter()
    probes = []
    for turn in sorted(turns, key=lambda turn: turn.order):
        probe = _make_probe(renderer, turn, opener, speaks_first)
        if probe is None:
            continue
        counts[turn.kind] += 1
        if counts[turn.kind] <= most_per_kind:
            probes.append(probe)
    return probes


def _find_turns(renderer: ChatRenderer, rows: Iterable[DatasetRow], max_length: int) -> list[_Turn]:
    """Return the trained turns of a row.

    A turn that must not be trained is not a right decision.
    """
    turns = []
    for row in split_into_trained_rows(renderer, rows):
        encoded_row = encode_row(renderer, row, max_length)
        if encoded_row is None:
            continue
        encoded, messages = encoded_row.encoded, encoded_row.messages
        for position, (start, stop), words_start in zip(
            renderer.trainable_turns(messages), encoded.turns, encoded.words, strict=True
        ):
            if is_trained(messages[position]):
                turns.append(
                    _Turn(
                        order=hash_json([row["row_id"], position]),
                        kind=name_kind(messages, position),
                        message=messages[position],
                        ids=encoded.input_ids,
                        start=words_start,
                        stop=stop,
                        has_thought=words_start > start,
                    )
                )
    return turns


def _skip_common_beginning(turns: list[_Turn]) -> list[_Turn]:
    """Return the turns without the tokens with which both calls and answers begin.

    The common tokens (an empty thought) do not distinguish a call from an answer.
    """
    without_thought = [turn for turn in turns if not turn.has_thought]
    if all(turn.is_call for turn in without_thought):
        return turns
    columns = zip(*(turn.tokens for turn in without_thought), strict=False)
    differing = (offset for offset, column in enumerate(columns) if len({*column}) > 1)
    common = next(differing, 0)
    return [
        turn if turn.has_thought else replace(turn, start=turn.start + common) for turn in turns
    ]


def _make_probe(
    renderer: ChatRenderer, turn: _Turn, opener: int, speaks_first: bool
) -> Probe | None:
    """Return the probe of a turn, or None if a call does not begin like the other calls.

    Args:
        renderer: The renderer of the model.
        turn: The turn.
        opener: The token that calls begin with.
        speaks_first: Whether agents write words before a call.
    """
    if not turn.is_call:
        position = turn.stop - 1 if speaks_first else turn.start
        ids = [*turn.ids[:position], opener]
        return Probe(turn.kind, Encoded(ids, [False] * position + [True], []), refuted=True)
    if opener not in turn.tokens:
        return None
    begin = turn.start + turn.tokens.index(opener)
    name = turn.message["tool_calls"][0]["function"]["name"]
    # The decision ends as soon as the name of the tool is complete.
    end = turn.stop
    for stop in range(begin + 1, turn.stop):
        if name in renderer.tokenizer.decode(turn.ids[begin:stop]):
            end = stop
            break
    trained = [begin <= position < end for position in range(end)]
    return Probe(turn.kind, Encoded(turn.ids[:end], trained, []), refuted=False)


def measure_decisions(model: "PreTrainedModel", probes: Sequence[Probe]) -> dict[str, float]:
    """Return the mean probability of the right decision, by kind of decision."""
    losses = compute_losses(model, [probe.encoded for probe in probes])
    probabilities_by_kind: defaultdict[str, list[float]] = defaultdict(list)
    for probe, row in zip(probes, losses, strict=True):
        probability = exp(-(row.loss or 0.0) * row.trained_tokens)
        if probe.refuted:
            probability = 1 - probability
        probabilities_by_kind[probe.kind].append(probability)
    return {
        kind: sum(probabilities) / len(probabilities)
        for kind, probabilities in sorted(probabilities_by_kind.items())
    }


def find_fallen_kinds(
    before: Mapping[str, float],
    now: Mapping[str, float],
    probes: Sequence[Probe],
    max_fall: float,
) -> list[str]:
    """Return the kinds of decision that have become less probable.

    Args:
        before: The probabilities before training, by kind.
        now: The probabilities now. A probability that is not a number counts as fallen.
        probes: The probes. Kinds with few turns are left out.
        max_fall: Largest fall that is accepted.
    """
    turn_counts = Counter(probe.kind for probe in probes)
    return [
        kind
        for kind in before
        if turn_counts[kind] >= MIN_TURNS_PER_KIND and not before[kind] - now[kind] <= max_fall
    ]
