"""What an agent decides with a turn, and how probable a model makes the right decision: one forward pass, no generation."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING, Any

from agent_pipeline.sessions.json_text import decoded_arguments
from agent_pipeline.sessions.session import Message, canonical_json, sha256_of
from agent_pipeline.training.encoding import encode_row
from agent_pipeline.training.losses import encoded_losses
from agent_pipeline.training.masks import Encoded

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

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


def decision(message: Message) -> str:
    """The tools that a message calls, or `answer`."""
    return "+".join(sorted(call["function"]["name"] for call in message.get("tool_calls") or ())) or ANSWER


def same_decision(one: Message, other: Message) -> bool:
    """Whether two messages make the same calls, in any order, or both make none: then they differ in words only."""
    return _calls(one) == _calls(other)


def _calls(message: Message) -> list[str]:
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return sorted(canonical_json([function["name"], decoded_arguments(function["arguments"])]) for function in functions)


def kind(messages: Sequence[Message], at: int) -> str:
    """What the message at `at` decides, and after what: `user → find_orders`, `find_orders → refund`, `refund → answer`."""
    before = messages[at - 1]["role"] if at else "nothing"
    if before == "tool":
        before = next((decision(message) for message in reversed(messages[:at]) if message["role"] == "assistant"), before)
    return f"{before} → {decision(messages[at])}"


def probes(tokenizer: "PreTrainedTokenizerBase", rows: Iterable[dict[str, Any]], max_length: int, most: int) -> list[Probe]:
    """At most `most` turns of each kind, chosen by hash, of SFT rows that can be trained on.

    A turn that says something before it calls is left out: its first token decides nothing. Without any call there is nothing to decide.
    """
    calls: list[tuple[str, str, Encoded, int]] = []
    answers: list[tuple[str, str, Encoded, int]] = []
    for row in rows:
        shown = encode_row(tokenizer, row, max_length)
        if shown is None:
            continue
        turns = [at for at, message in enumerate(shown.messages) if message["role"] == "assistant"]
        for at, (start, end) in zip(turns, shown.encoded.turns, strict=True):
            message, place = shown.messages[at], sha256_of([row["row_id"], at])
            if not message.get("tool_calls"):
                answers.append((place, kind(shown.messages, at), shown.encoded, start))
            elif not message.get("content"):
                name = message["tool_calls"][0]["function"]["name"]
                ids = shown.encoded.input_ids
                named = next((stop for stop in range(start + 1, end) if name in tokenizer.decode(ids[start:stop])), end)
                decided = Encoded(ids[:named], [start <= position < named for position in range(named)], [])
                calls.append((place, kind(shown.messages, at), decided, start))
    openers = Counter(encoded.input_ids[start] for _, _, encoded, start in calls)
    if not openers:
        return []
    opener = max(openers, key=lambda token: (openers[token], token))
    all_turns = [(place, Probe(of, encoded, False)) for place, of, encoded, _ in calls]
    for place, of, encoded, start in answers:
        all_turns.append((place, Probe(of, Encoded([*encoded.input_ids[:start], opener], [False] * start + [True], []), True)))
    taken: Counter[str] = Counter()
    chosen = []
    for _, probe in sorted(all_turns, key=lambda pair: pair[0]):
        taken[probe.kind] += 1
        if taken[probe.kind] <= most:
            chosen.append(probe)
    return chosen


def decision_probabilities(model: "PreTrainedModel", asked: Sequence[Probe]) -> dict[str, float]:
    """The mean probability of the right decision, by kind."""
    by_kind: dict[str, list[float]] = defaultdict(list)
    for probe, row in zip(asked, encoded_losses(model, [each.encoded for each in asked]), strict=True):
        probability = exp(-(row.loss or 0.0) * row.trained_tokens)
        by_kind[probe.kind].append(1 - probability if probe.refuted else probability)
    return {name: sum(values) / len(values) for name, values in sorted(by_kind.items())}


def fallen(before: Mapping[str, float], now: Mapping[str, float], asked: Sequence[Probe], most: float) -> list[str]:
    """The kinds, of enough turns, whose probability fell by more than `most`."""
    turns = Counter(probe.kind for probe in asked)
    return [name for name in before if turns[name] >= FEWEST_TURNS and before[name] - now[name] > most]
