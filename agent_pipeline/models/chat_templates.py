"""The choice of the chat template with which a model is trained.

The candidates, in order: the model's own template with small adjustments, our template in the turn
markers of the model's family, and our template in the turn markers of other families whose special
tokens the vocabulary has. The first candidate that passes the probe is used.

A template that is not prefix-preserving passes: each turn is then trained as it is prompted. The
probe belongs in `template_probe`, the adjustments in `template_adjustments`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent_pipeline.errors import ModelError
from agent_pipeline.json_types import JsonValue
from agent_pipeline.models.families import FAMILIES, find_family, write_hermes_template
from agent_pipeline.models.rendering import ArgumentsAs
from agent_pipeline.models.special_tokens import special_tokens
from agent_pipeline.models.template_adjustments import adjust_template
from agent_pipeline.models.template_probe import ProbeResult, ReplyParser, probe_template

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template that a model is trained or served with, and the facts about it.

    Attributes:
        jinja: The text of the template.
        origin: `model` if it is the model's own, else the family whose turn markers ours uses.
        why: Why this template is used.
        arguments_as: How the template takes the arguments of calls.
        stops: The tokens that end an assistant's turn.
        prefix_preserving: As in `ProbeResult`. If it is False, each turn is a training row.
        reasoning: As in `ProbeResult`.
        sorts_tools: As in `ProbeResult`.
        reply_parser: As in `ProbeResult`.
    """

    jinja: str
    origin: str
    why: str
    arguments_as: ArgumentsAs
    stops: tuple[str, ...]
    prefix_preserving: bool = True
    reasoning: tuple[str, str] | None = None
    sorts_tools: bool = False
    reply_parser: ReplyParser = "ours"

    def to_report(self) -> dict[str, JsonValue]:
        """Return the facts about the template for `training.json`, without the template's text."""
        return {
            "origin": self.origin,
            "why": self.why,
            "arguments_as": self.arguments_as,
            "stops": list(self.stops),
            "rows": "conversation" if self.prefix_preserving else "turn",
            "tools": "sorted" if self.sorts_tools else "as requested",
            "reasoning": list(self.reasoning) if self.reasoning else None,
        }


@dataclass(frozen=True)
class _Candidate:
    """A chat template that could be used. `origin` and `why` are as in `ChatTemplate`."""

    origin: str
    jinja: str
    why: str

    def with_facts(self, result: ProbeResult, why: str) -> ChatTemplate:
        return ChatTemplate(
            self.jinja,
            self.origin,
            why,
            result.arguments_as,
            result.stops,
            result.prefix_preserving,
            result.reasoning,
            result.sorts_tools,
            result.reply_parser,
        )


def choose_template(
    tokenizer: "PreTrainedTokenizerBase", was_trained_with: bool = False
) -> ChatTemplate:
    """Return the first chat template that renders a conversation with tools without losing content.

    The tokenizer is not changed.

    Args:
        tokenizer: The tokenizer.
        was_trained_with: As in `adjust_template`.

    Raises:
        ModelError: No template does.
    """
    own_template = find_own_template(tokenizer)
    refusals = [] if own_template else ["there is none"]
    for candidate in _candidates(tokenizer, own_template, was_trained_with):
        result = probe_template(tokenizer, candidate.jinja)
        if result.defects:
            refusals.append("; ".join(result.defects))
            continue
        why = candidate.why
        if candidate.origin != "model":
            why = f"{why}, because the model's own template cannot be used ({refusals[0]})"
        if result.reply_parser == "response_template":
            why += "; transformers reads its replies, as the tokenizer's response_template says"
        if not result.prefix_preserving:
            why += "; it is not prefix-preserving, so each turn is a row"
        return candidate.with_facts(result, why)
    raise ModelError(
        f"The chat template of {tokenizer.name_or_path or 'the base model'} cannot be trained with "
        f"tool calls ({refusals[0]}), and its vocabulary lacks the turn markers that our template "
        "needs (such as <|im_start|> and <|im_end|>): choose another base model."
    )


def describe_own_template(tokenizer: "PreTrainedTokenizerBase") -> ChatTemplate | None:
    """Return a tokenizer's own chat template, with the facts that the probe finds.

    The template is used unchanged, even if it has defects: this is the template that a finished
    model is served with.

    Returns:
        The template, or None if the tokenizer has none.
    """
    own_template = find_own_template(tokenizer)
    if not own_template:
        return None
    result = probe_template(tokenizer, own_template)
    why = "; ".join(result.defects) or "the template that is saved with the model"
    return _Candidate("model", own_template, why).with_facts(result, why)


def find_own_template(tokenizer: "PreTrainedTokenizerBase") -> str | None:
    """Return the chat template that came with a tokenizer.

    If there are several, return the one for tools.
    """
    template: str | dict[str, str] | None = tokenizer.chat_template
    if isinstance(template, dict):
        return template.get("tool_use") or template.get("default")
    result: str | None = template
    return result


def _candidates(
    tokenizer: "PreTrainedTokenizerBase", own_template: str | None, was_trained_with: bool
) -> Iterator[_Candidate]:
    if own_template:
        adjusted = adjust_template(tokenizer, own_template, was_trained_with)
        why = f"the model's own template renders tools without loss{adjusted.change}"
        yield _Candidate("model", adjusted.jinja, why)
    vocabulary = special_tokens(tokenizer)
    families_with_markers = [
        (family.name, family.markers)
        for family in FAMILIES
        if family.markers and vocabulary.issuperset(family.markers.tokens)
    ]
    # The markers that the model was made with come first.
    family = find_family(chat_template=own_template or "")
    families_with_markers.sort(
        key=lambda pair: (
            family is None or family.name != pair[0],
            pair[1].tokens[-1] not in (own_template or ""),
        )
    )
    for name, markers in families_with_markers:
        written_in = "ChatML" if name == "hermes" else f"the turn markers of {name}"
        why = f"our template in {written_in}"
        yield _Candidate(
            name, write_hermes_template(markers, "bos_token" in (own_template or "")), why
        )
