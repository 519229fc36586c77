"""What an agent decides with a turn, and how probable a model makes the right decision: one forward pass, no generation."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING, Any, NamedTuple

from agent_pipeline.engine.scoring import encoded_losses
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.sessions.json_text import decode_arguments
from agent_pipeline.sessions.session import Message, dump_canonical_json, hash_json, is_trained
from agent_pipeline.tokenization.encoding import as_trained, encode_row
from agent_pipeline.tokenization.loss_masks import Encoded

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ANSWER = "answer"
FEWEST_TURNS = 4
"""A kind with fewer turns is reported and judged by nobody: one turn would be a quarter of it."""


@dataclass(frozen=True)
class Probe:
    """A turn whose decision is looked at. The probability of `encoded`'s trained tokens is that of deciding so or, with `refuted`, of
    not deciding so: an answer is every text that does not begin as a call does."""

    kind: str
    encoded: Encoded
    refuted: bool


class _Turn(NamedTuple):
    """An assistant's turn: its tokens, after a thought, are `ids[start:stop]`; `place` is its place in the order by hash."""

    place: str
    kind: str
    message: Message
    ids: list[int]
    start: int
    stop: int
    thought: bool


def decision(message: Message) -> str:
    """The tools that a message calls, or `answer`."""
    return (
        "+".join(sorted(call["function"]["name"] for call in message.get("tool_calls") or ()))
        or ANSWER
    )


def same_decision(one: Message, other: Message) -> bool:
    """Whether two messages make the same calls, in any order, or both make none: then they differ in words only."""
    return _calls(one) == _calls(other)


def _calls(message: Message) -> list[str]:
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return sorted(
        dump_canonical_json([function["name"], decode_arguments(function["arguments"])])
        for function in functions
    )


def kind(messages: Sequence[Message], at: int) -> str:
    """What the message at `at` decides, and after what: `user → find_orders`, `find_orders → refund`, `refund → answer`."""
    before: str = messages[at - 1]["role"] if at else "nothing"
    if before == "tool":
        before = next(
            (
                decision(message)
                for message in reversed(messages[:at])
                if message["role"] == "assistant"
            ),
            before,
        )
    return f"{before} → {decision(messages[at])}"


def probes(
    renderer: ChatRenderer, rows: Iterable[dict[str, Any]], max_length: int, most: int
) -> list[Probe]:
    """At most `most` turns of each kind, chosen by hash, of SFT rows that can be trained on.

    A call is decided where it begins, which may be after words of the same turn. An answer is decided where a call would begin: at its
    first token or, where agents speak before they call, at its end. Without any bare call there is nothing to decide.
    """
    turns: list[_Turn] = []
    for row in as_trained(renderer, rows):
        shown = encode_row(renderer, row, max_length)
        if shown is not None:
            places = renderer.trainable_turns(shown.messages)
            for at, (start, stop), words in zip(
                places, shown.encoded.turns, shown.encoded.words, strict=True
            ):
                message, place = shown.messages[at], hash_json([row["row_id"], at])
                if is_trained(message):  # what should not be trained is not a right decision either
                    of = kind(shown.messages, at)
                    turns.append(
                        _Turn(
                            place, of, message, shown.encoded.input_ids, words, stop, words > start
                        )
                    )
    others = [turn for turn in turns if not turn.thought]
    if any(
        not turn.message.get("tool_calls") for turn in others
    ):  # what calls and answers begin with decides nothing (an empty thought)
        columns = zip(*(turn.ids[turn.start : turn.stop] for turn in others), strict=False)
        lead = next((at for at, column in enumerate(columns) if len({*column}) > 1), 0)
        turns = [turn if turn.thought else turn._replace(start=turn.start + lead) for turn in turns]
    calls = [turn for turn in turns if turn.message.get("tool_calls")]
    openers = Counter(turn.ids[turn.start] for turn in calls if not turn.message.get("content"))
    if not openers:
        return []
    opener = max(openers, key=lambda token: (openers[token], token))
    speaks_first = any(turn.message.get("content") for turn in calls)
    taken: Counter[str] = Counter()
    chosen = []
    for turn in sorted(turns, key=lambda turn: turn.place):
        probe = _probe(renderer, turn, opener, speaks_first)
        taken[turn.kind] += probe is not None
        if probe is not None and taken[turn.kind] <= most:
            chosen.append(probe)
    return chosen


def _probe(renderer: ChatRenderer, turn: _Turn, opener: int, speaks_first: bool) -> Probe | None:
    """The decision of a turn; None for a call that does not begin as calls do."""
    if not turn.message.get("tool_calls"):
        at = turn.stop - 1 if speaks_first else turn.start
        return Probe(turn.kind, Encoded([*turn.ids[:at], opener], [False] * at + [True], []), True)
    spoken = turn.ids[turn.start : turn.stop]
    if opener not in spoken:
        return None
    begin, name = (
        turn.start + spoken.index(opener),
        turn.message["tool_calls"][0]["function"]["name"],
    )
    named = next(
        (
            stop
            for stop in range(begin + 1, turn.stop)
            if name in renderer.tokenizer.decode(turn.ids[begin:stop])
        ),
        turn.stop,
    )
    return Probe(
        turn.kind,
        Encoded(turn.ids[:named], [begin <= position < named for position in range(named)], []),
        False,
    )


def decision_probabilities(model: "PreTrainedModel", asked: Sequence[Probe]) -> dict[str, float]:
    """The mean probability of the right decision, by kind."""
    by_kind: dict[str, list[float]] = defaultdict(list)
    for probe, row in zip(
        asked, encoded_losses(model, [each.encoded for each in asked]), strict=True
    ):
        probability = exp(-(row.loss or 0.0) * row.trained_tokens)
        by_kind[probe.kind].append(1 - probability if probe.refuted else probability)
    return {name: sum(values) / len(values) for name, values in sorted(by_kind.items())}


def fallen(
    before: Mapping[str, float], now: Mapping[str, float], asked: Sequence[Probe], most: float
) -> list[str]:
    """The kinds, of enough turns, whose probability fell by more than `most`, or is not a number any more."""
    turns = Counter(probe.kind for probe in asked)
    return [
        name
        for name in before
        if turns[name] >= FEWEST_TURNS and not before[name] - now[name] <= most
    ]
