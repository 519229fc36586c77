"""The chat renderer: one object for everything that depends on a tokenizer and its chat template.

`ChatRenderer` renders conversations, tokenizes them, finds the assistant's turns and the stop
tokens, and parses replies. Whoever needs a conversation as text or as tokens takes a renderer, not
a tokenizer. How a template is chosen belongs in `chat_templates`, how a template is called in
`rendering`, and which tokens are trained in `tokenization`.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from agent_pipeline.errors import DataError, ModelError
from agent_pipeline.models.chat_templates import (
    ChatTemplate,
    choose_template,
    describe_own_template,
)
from agent_pipeline.models.families import ParsedReply, parse_reply
from agent_pipeline.models.json_numbers import changed_numbers
from agent_pipeline.models.loading import read_tokenizer
from agent_pipeline.models.rendering import render_template
from agent_pipeline.models.special_tokens import (
    TokenCounter,
    TokenizedText,
    mark_literals,
    special_tokens,
    tokenize,
)
from agent_pipeline.models.template_probe import (
    CALL_INDEX,
    SENTINEL,
    cut_after_stop_token,
    parse_with_tokenizer,
)
from agent_pipeline.sessions.session import THOUGHT, Message, Tool, drop_keys, list_calls

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TRAINING_REPORT = "training.json"
"""File that training writes into the directory of an adapter or of a whole model."""

Value = TypeVar("Value")


class ChatRenderer:
    """A tokenizer, and the chat template with which its model is trained and served.

    The tokenizer's own `chat_template` is set to the template, so that both are saved together. A
    `response_template` belongs to the model's own template, and is removed with it.

    Attributes:
        tokenizer: The tokenizer.
        template: The chat template, with the facts that its probe found.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", template: ChatTemplate) -> None:
        self.tokenizer = tokenizer
        self.template = template
        tokenizer.chat_template = template.jinja
        if template.origin != "model" and getattr(tokenizer, "response_template", None):
            tokenizer.response_template = None

    @cached_property
    def special_tokens(self) -> set[str]:
        """All tokens that mark the structure of a conversation."""
        return special_tokens(self.tokenizer)

    @cached_property
    def stop_ids(self) -> set[int]:
        """Return the ids of the tokens that end an assistant turn in the chat template."""
        return set(self.tokenizer.convert_tokens_to_ids(list(self.template.stops)))

    @cached_property
    def answer_end_ids(self) -> set[int]:
        """Return the ids of the tokens that end generation: stop tokens and the end of a text."""
        return self.stop_ids | {self.tokenizer.eos_token_id} - {None}

    def render(
        self,
        messages: list[Message],
        tools: list[Tool] | None,
        add_generation_prompt: bool = False,
    ) -> str:
        """Render a conversation as text. Special tokens that users typed are marked as plain text.

        Only the last message shows its thought, and only if the template shows thoughts: clients do
        not send back the thoughts of earlier messages.

        Args:
            messages: The conversation.
            tools: The tools that the template shows.
            add_generation_prompt: Whether the text ends where the assistant is to answer.

        Raises:
            Exception: Whatever the template raises; a template is a program.
        """
        return render_template(
            self.tokenizer,
            self.template.jinja,
            self.template.arguments_as,
            self._with_shown_thoughts(messages, add_generation_prompt),
            tools,
            add_generation_prompt,
        )

    def _with_shown_thoughts(
        self, messages: list[Message], add_generation_prompt: bool
    ) -> list[Message]:
        if not any(THOUGHT in message for message in messages):
            return messages
        shown = [drop_keys(message, THOUGHT) for message in messages]
        thought = messages[-1].get(THOUGHT)
        if thought and not add_generation_prompt and self.template.reasoning:
            key, _ = self.template.reasoning
            shown[-1] = cast(Message, shown[-1] | {key: thought})
        return shown

    def mark_literals(self, value: Value) -> Value:
        """Insert a mark into each special token in a text, or in all texts of a list or object."""
        return mark_literals(self.tokenizer, value)

    def tokenize(self, text: str) -> TokenizedText:
        """Tokenize a rendered text, and return the tokens with their positions."""
        return tokenize(self.tokenizer, text)

    def token_ids(self, text: str) -> list[int]:
        """Return the token ids of a rendered text."""
        return tokenize(self.tokenizer, text).ids

    @cached_property
    def token_counter(self) -> TokenCounter:
        """Return the counter of tokens, which is faster than `token_ids` for many texts."""
        return TokenCounter(self.tokenizer)

    def decode(self, ids: Sequence[int]) -> str:
        """Decode tokens as text.

        Special tokens are kept, because some families mark a tool call with them.
        """
        text: str = self.tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def prompt_ids(self, messages: list[Message], tools: list[Tool] | None) -> list[int]:
        """Return the tokens of a conversation up to the position at which the assistant answers."""
        return self.token_ids(self.render(messages, tools, add_generation_prompt=True))

    def turn_ids(self, messages: list[Message], tools: list[Tool] | None) -> list[int]:
        """Return the last message, which is the assistant's, as tokens up to its stop token."""
        prompt = self.render(messages[:-1], tools, add_generation_prompt=True)
        turn = self.render(messages, tools)[len(prompt) :]
        return self.token_ids(cut_after_stop_token(self.tokenizer, turn))

    def trains_turns_apart(self, messages: Sequence[Message] = ()) -> bool:
        """Return whether each assistant turn of a conversation is trained as a separate row.

        Turns are trained separately if the template is not prefix-preserving. Turns are also
        trained separately if the server would repeat a call differently than it was recorded,
        because the server rounds the numbers of earlier calls.
        """
        if not self.template.prefix_preserving:
            return True
        if self.template.arguments_as != "dict":
            return False
        earlier_calls = list_calls(list(messages[:-1]))
        return any(changed_numbers(arguments) for _, arguments in earlier_calls)

    def trainable_turns(self, messages: Sequence[Message]) -> list[int]:
        """Return the indices of the assistant messages that can be trained in one row.

        These are all assistant messages, or only the last message if each turn is a separate row.
        """
        indices = [
            index for index, message in enumerate(messages) if message["role"] == "assistant"
        ]
        return indices[-1:] if self.trains_turns_apart(messages) else indices

    def assistant_spans(
        self, messages: list[Message], tools: list[Tool] | None, text: str
    ) -> list[tuple[int, int]]:
        """Return the character ranges [start, end) of the trainable turns with their stop tokens.

        Args:
            messages: The conversation.
            tools: The tools that the template shows.
            text: The conversation as `render` returns it.

        Raises:
            DataError: The text of a turn is not a part of the whole text.
        """
        spans = []
        for index in self.trainable_turns(messages):
            prompt = self.render(messages[:index], tools, add_generation_prompt=True)
            is_last = index + 1 == len(messages)
            through_turn = text if is_last else self.render(messages[: index + 1], tools)
            if not (through_turn.startswith(prompt) and text.startswith(through_turn)):
                raise DataError(
                    f"the chat template renders message {index} differently if later messages "
                    "follow it"
                )
            turn = cut_after_stop_token(self.tokenizer, through_turn[len(prompt) :])
            spans.append((len(prompt), len(prompt) + len(turn)))
        return spans

    def thought_end(self, message: Message, text: str) -> int:
        """Return the position after a turn's thought and the template's text after the thought.

        Args:
            message: The assistant's message.
            text: The turn as the template renders it.

        Returns:
            A position in `text`; 0 if the turn shows no thought.
        """
        thought = self.mark_literals((message.get(THOUGHT) or "").strip())
        if not thought or not self.template.reasoning:
            return 0
        _, closing = self.template.reasoning
        start = text.find(thought + closing)
        return start + len(thought) + len(closing) if start >= 0 else 0

    def parse_reply(self, text: str, tools: Sequence[Tool] | None) -> ParsedReply:
        """Parse a generated text, without its stop token, into tool calls and words."""
        if self.template.reply_parser == "ours":
            return parse_reply(text, tools)
        prompt = self.render(SENTINEL[:CALL_INDEX], None, add_generation_prompt=True)
        return parse_with_tokenizer(self.tokenizer, prompt, text + self.template.stops[0], tools)

    def decode_reply(self, ids: Sequence[int], tools: Sequence[Tool] | None) -> str:
        """Decode generated tokens as a text that `families.parse_reply` can read.

        If only the tokenizer's `response_template` describes how the model writes its calls, the
        calls are rewritten in the notation of our own template. A call that cannot be parsed stays
        a call that cannot be parsed.

        Args:
            ids: The tokens of a turn, without its stop token.
            tools: The tools of the conversation.
        """
        text = self.decode(ids)
        if self.template.reply_parser == "ours":
            return text
        reply = self.parse_reply(text, tools)
        if reply.invalid:
            return f"<tool_call>\n{text}"
        calls = [{"name": call.name, "arguments": call.arguments} for call in reply.calls]
        parts = [reply.text, *(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)]
        return "\n".join(part for part in parts if part)


def load_renderer(directory: Path, trust_remote_code: bool = False) -> ChatRenderer:
    """Return the renderer of a base model or an adapter, with the chat template for training.

    An adapter's saved template passes the probe, so it is chosen again, as the model's own. An
    adapter of an earlier version keeps the order of the tools that it was trained with.

    Raises:
        ModelError: The tokenizer cannot be read, or no template renders tool calls without loss.
    """
    tokenizer = read_tokenizer(directory, trust_remote_code)
    if not tokenizer.is_fast:
        raise ModelError(
            f"The tokenizer in {directory} has no fast version (tokenizer.json), which loss masks "
            "need: choose another base model."
        )
    renderer = ChatRenderer(
        tokenizer, choose_template(tokenizer, (directory / TRAINING_REPORT).is_file())
    )
    tokenizer.padding_side = "right"
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or renderer.template.stops[0]
    return renderer


def wrap_tokenizer(tokenizer: "PreTrainedTokenizerBase") -> ChatRenderer | None:
    """Return a renderer with a tokenizer's own chat template, or None if it has no template."""
    template = describe_own_template(tokenizer)
    return None if template is None else ChatRenderer(tokenizer, template)


def read_renderer(directory: Path, trust_remote_code: bool = False) -> ChatRenderer:
    """Return the renderer of a model or an adapter, with the chat template saved in its directory.

    Raises:
        ModelError: The tokenizer cannot be read, or there is no chat template.
    """
    renderer = wrap_tokenizer(read_tokenizer(directory, trust_remote_code))
    if renderer is None:
        raise ModelError(
            f"{directory} has no chat template: give the directory of a trained adapter or model."
        )
    return renderer
