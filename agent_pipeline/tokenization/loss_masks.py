"""Encoding of conversations as tokens with a loss mask, which tells which tokens are trained.

Trained tokens are those of the assistant and the stop token of its turn. No `{% generation %}`
marks are needed: the text of the assistant's turn `i` is what `render(messages[: i + 1])` has
beyond `render(messages[:i], add_generation_prompt=True)`. These character spans become a mask over
the tokens of the whole text, so the model is trained on exactly the tokens that it will meet.
`check_mask` then proves on the tokens that the mask is right.

How rows are shortened and counted belongs in `encoding`.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agent_pipeline.errors import DataError
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.models.rendering import argument_texts
from agent_pipeline.models.special_tokens import MARK
from agent_pipeline.models.template_probe import find_stop_token
from agent_pipeline.sessions.json_text import decode_arguments
from agent_pipeline.sessions.session import THOUGHT, Message, Tool, is_trained, list_calls

MAX_CALL_POSITIONS = 8
"""Maximum number of positions in a turn at which a call may begin: the first positions, and the end
of the words.
"""

_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+|\n+")


class MessageNotShown(DataError):
    """Raised if a chat template does not show a message of the system or the user."""


@dataclass(frozen=True)
class Encoded:
    """A conversation as tokens, with its loss mask.

    Attributes:
        input_ids: The token ids.
        trained: For each token, whether the loss counts it.
        turns: The token ranges [start, end) of the assistant's turns, in order. The turns with a
            weight are trained; OpenAI's `weight: 0` marks the others.
        literals: The number of special tokens in the messages' texts, which are encoded as text.
        words: For each turn, the index of the token with which it begins to speak or to call,
            after its thought.
    """

    input_ids: list[int]
    trained: list[bool]
    turns: list[tuple[int, int]]
    literals: int = 0
    words: list[int] = field(default_factory=list)

    @property
    def labels(self) -> list[int]:
        """Return a copy of `input_ids` with −100 (PyTorch's ignore index) for untrained tokens."""
        return [
            token if is_token_trained else -100
            for token, is_token_trained in zip(self.input_ids, self.trained, strict=True)
        ]


def find_call_positions(words: str) -> list[int]:
    """Return the positions in a turn's stripped text at which a tool call may begin."""
    sentence_starts = [0, *(match.start() for match in _SENTENCE_END.finditer(words))]
    positions = [*sentence_starts[: MAX_CALL_POSITIONS - 1], len(words)]
    return list(dict.fromkeys(positions))


def encode_conversation(
    renderer: ChatRenderer, messages: list[Message], tools: list[Tool] | None
) -> Encoded:
    """Encode a conversation as tokens with its loss mask.

    Args:
        renderer: The model's tokenizer and chat template.
        messages: The conversation.
        tools: The tools that the template shows.

    Raises:
        DataError: The text of a turn is not a part of the whole text.
        MessageNotShown: The template does not show a message of the system or the user.
    """
    text = renderer.render(messages, tools)
    check_prompt_shown(renderer, messages, text)
    spans = renderer.assistant_spans(messages, tools, text)
    tokens = renderer.tokenize(text)
    token_starts = [start for start, _ in tokens.offsets]
    trained = [False] * len(tokens.ids)
    turns: list[tuple[int, int]] = []
    words: list[int] = []
    position = 0
    for message_index, span in zip(renderer.trainable_turns(messages), spans, strict=True):
        span_start, span_end = span
        message = messages[message_index]
        # A token belongs to the turn in which it begins: if a token straddles the border, the
        # model has already seen a part of it.
        while position < len(token_starts) and token_starts[position] < span_start:
            position += 1
        turn_start = position
        while position < len(token_starts) and token_starts[position] < span_end:
            trained[position] = is_trained(message)
            position += 1
        turns.append((turn_start, position))
        words_start = span_start + renderer.thought_end(message, text[span_start:span_end])
        words.append(_first_token_from(token_starts, turn_start, position, words_start))
    return Encoded(tokens.ids, trained, turns, literals=text.count(MARK), words=words)


def check_prompt_shown(renderer: ChatRenderer, messages: Sequence[Message], text: str) -> None:
    """Check that a rendered text shows what the system and the users said.

    Some templates show only one system message. A turn that follows a rule which the model cannot
    read would be false.

    Args:
        renderer: The tokenizer and chat template that rendered the text.
        messages: The conversation.
        text: The rendered text.

    Raises:
        MessageNotShown: The text lacks a message.
    """
    stripped_text = ""
    for index, message in enumerate(messages):
        written = (message.get("content") or "").encode("utf-8", "replace").decode("utf-8")
        content = renderer.mark_literals(written)
        if message["role"] not in ("system", "user") or content in text:
            continue
        stripped_text = stripped_text or _strip_blanks(text)
        if not _shows(stripped_text, content):
            raise MessageNotShown(
                f"the chat template does not show the {message['role']} message {index}"
            )


def _first_token_from(token_starts: list[int], first: int, end: int, character: int) -> int:
    """Return the first token of a turn that begins at or after a given character.

    Args:
        token_starts: The character at which each token begins.
        first: The first token of the turn.
        end: The token after the turn.
        character: A position in the text.

    Returns:
        The index of the token; `first` if there is none.
    """
    for index in range(first, end):
        if token_starts[index] >= character:
            return index
    return first


def _strip_blanks(text: str) -> str:
    """Return a text without the blanks that templates and tokenizers change.

    Templates trim, tokenizers normalize (NFC), and SentencePiece moves spaces.
    """
    return "".join(unicodedata.normalize("NFKC", text).split())


def _shows(shown_text: str, text: str) -> bool:
    """Return whether a stripped text contains another text, directly or as an escaped JSON string.

    Llama 3.1's template puts tool results into JSON.
    """
    escaped = json.dumps(text, ensure_ascii=False)[1:-1]
    return _strip_blanks(text) in shown_text or _strip_blanks(escaped) in shown_text


_WRITTEN_ALIKE = {"None": "null", "True": "true", "False": "false"}
"""Words of Python, and the words of JSON for the same values."""


def _as_written(value: object) -> object:
    """Return a value with all its parts as texts, without blanks and with short numbers.

    Two values are equal in this form if a notation without quotes, a rounded number or a normalized
    text explains their difference.
    """
    if isinstance(value, dict):
        return {_strip_blanks(key): _as_written(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_written(item) for item in value]
    text = _strip_blanks(str(value).encode("utf-8", "replace").decode("utf-8"))
    try:
        return f"{float(text):.6g}"
    except ValueError:
        return _WRITTEN_ALIKE.get(text, text)


MaskDefect = Literal[
    "nothing_trained",
    "other_turn_trained",
    "no_stop_token",
    "tool_result_trained",
    "other_words",
    "other_calls",
    "trained_after_end",
]
"""Defects of a loss mask, in the order in which `check_mask` searches for them."""


class MaskError(DataError):
    """Raised if the tokens do not prove that a loss mask is right.

    Attributes:
        defect: What is wrong.
        message_index: The message that is concerned; None if no single message is.
    """

    def __init__(self, text: str, defect: MaskDefect, message_index: int | None = None) -> None:
        super().__init__(text)
        self.defect = defect
        self.message_index = message_index


class _MaskChecker:
    """A checker of one conversation's loss mask, turn by turn."""

    def __init__(
        self,
        encoded: Encoded,
        renderer: ChatRenderer,
        messages: list[Message],
        tools: Sequence[Tool] | None,
        row_name: str,
    ) -> None:
        self._encoded = encoded
        self._renderer = renderer
        self._messages = messages
        self._tools = tools
        self._row_name = row_name

    def check(self) -> None:
        """Check every turn of the conversation, and the tokens around the turns."""
        trained = self._encoded.trained
        if not any(trained):
            raise self._error("nothing_trained", "it contains no assistant tokens")
        previous_end = 0
        previous_message = -1
        turns = iter(self._encoded.turns)
        for index in self._renderer.trainable_turns(self._messages):
            start, end = next(turns, (0, 0))
            self._check_mask_of_turn(index, previous_end, start, end)
            self._check_stop_token(index, start, end)
            shown_between = _strip_blanks(self._decode(previous_end, start))
            self._check_tool_results(previous_message + 1, index, shown_between)
            self._check_words(index, _strip_blanks(self._decode(start, end)))
            self._check_calls(index, self._decode(start, end))
            previous_end = end
            previous_message = index
        if next(turns, None) or any(trained[previous_end:]):
            raise self._error("trained_after_end", "tokens after the last answer are trained")

    def _error(
        self, defect: MaskDefect, problem: str, message_index: int | None = None
    ) -> MaskError:
        return MaskError(
            f"{self._row_name} cannot be used for training, because {problem}: check its messages "
            "against the base model's chat template.",
            defect,
            message_index,
        )

    def _decode(self, start: int, end: int) -> str:
        return self._renderer.decode(self._encoded.input_ids[start:end])

    def _check_mask_of_turn(self, index: int, previous_end: int, start: int, end: int) -> None:
        """Check that a turn is trained as its message requires, and that nothing before it is."""
        trained = self._encoded.trained
        should_be_trained = is_trained(self._messages[index])
        is_turn_wrong = any(value != should_be_trained for value in trained[start:end])
        if is_turn_wrong or any(trained[previous_end:start]):
            raise self._error(
                "other_turn_trained", f"the mask does not match the turn of message {index}", index
            )

    def _check_stop_token(self, index: int, start: int, end: int) -> None:
        tokenizer = self._renderer.tokenizer
        last_token = tokenizer.convert_ids_to_tokens(self._encoded.input_ids[end - 1])
        ends_with_stop = find_stop_token(tokenizer, self._decode(start, end))
        if not ends_with_stop or last_token not in self._renderer.special_tokens:
            raise self._error(
                "no_stop_token", f"the turn of message {index} ends without its stop token", index
            )

    def _check_tool_results(self, first: int, end: int, shown_between: str) -> None:
        """Check that the tool results before a turn appear outside of the trained tokens."""
        for index in range(first, end):
            message = self._messages[index]
            if message["role"] == "tool" and not _shows(
                shown_between, message.get("content") or ""
            ):
                raise self._error(
                    "tool_result_trained",
                    f"the tool result of message {index} is not outside the trained tokens",
                    index,
                )

    def _check_words(self, index: int, shown_turn: str) -> None:
        """Check that the tokens of a turn decode to the assistant's words and its thought."""
        message = self._messages[index]
        thought = message.get(THOUGHT) if self._renderer.template.reasoning else None
        self._check_shown(index, shown_turn, [message.get("content") or "", thought or ""])

    def _check_shown(self, index: int, shown_turn: str, texts: Iterable[str]) -> None:
        for text in texts:
            if not _shows(shown_turn, text):
                raise self._error(
                    "other_words",
                    f"the trained tokens of message {index} do not decode to the assistant's text",
                    index,
                )

    def _check_calls(self, index: int, turn: str) -> None:
        """Check that the calls of a turn are read back from its tokens.

        Some notations cannot write every argument: Qwen3.5 writes a text between tags, and the text
        may contain these tags. Arguments that are no JSON object cannot be read back, so their
        texts must be shown. So must those of a turn that is not trained.
        """
        message = self._messages[index]
        expected = [
            (name, decode_arguments(arguments)) for name, arguments in list_calls([message])
        ]
        if not expected or self._reads_back(expected, turn):
            return
        if is_trained(message) and all(isinstance(arguments, dict) for _, arguments in expected):
            raise self._error(
                "other_calls",
                f"the tool calls of message {index} cannot be read back from the chat template's "
                "text",
                index,
            )
        shown_turn = _strip_blanks(turn)
        for name, arguments in expected:
            self._check_shown(index, shown_turn, [name, *argument_texts(arguments)])

    def _reads_back(self, expected: list[tuple[str, object]], turn: str) -> bool:
        stop = find_stop_token(self._renderer.tokenizer, turn) or ""
        reply = self._renderer.parse_reply(turn.rstrip().removesuffix(stop), self._tools)
        calls = [(call.name, call.arguments) for call in reply.calls]
        return not reply.invalid and _as_written(calls) == _as_written(expected)


def check_mask(
    encoded: Encoded,
    renderer: ChatRenderer,
    messages: list[Message],
    row_name: str = "this row",
    tools: Sequence[Tool] | None = None,
) -> None:
    """Prove that a loss mask is right by decoding its tokens.

    At least one token is trained. Each turn ends with the stop token, which is trained if the turn
    is. No token of a tool result, and none of a turn with `weight: 0`, is trained. Each span
    decodes to the assistant's words and calls, and the calls are read back from it.

    Args:
        encoded: The conversation as tokens.
        renderer: The tokenizer and chat template that made the tokens.
        messages: The conversation.
        row_name: The name of the row in an error.
        tools: The tools that the template shows.

    Raises:
        MaskError: One of these statements does not hold.
    """
    _MaskChecker(encoded, renderer, messages, tools, row_name).check()
