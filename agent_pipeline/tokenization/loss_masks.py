"""Which tokens of a conversation are trained: the assistant's own, and the token with which it stopped.

No `{% generation %}` marks are needed: the text of the assistant's turn `i` is what `render(messages[:i + 1])` has beyond
`render(messages[:i], add_generation_prompt=True)`. Those character spans become token masks through the offsets of the
one tokenisation of the whole text, so the model trains on exactly the tokens it will meet. `check` then proves on the tokens
alone that the mask is right.
"""

import json
import re
import unicodedata
from dataclasses import dataclass, field

from agent_pipeline.errors import DataError
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.models.rendering import argument_texts
from agent_pipeline.models.special_tokens import MARK
from agent_pipeline.models.template_probe import find_stop_token
from agent_pipeline.sessions.json_text import decode_arguments
from agent_pipeline.sessions.session import THOUGHT, Message, Tool, is_trained, list_calls

PLACES = 8
"""Most places of a turn at which a call may begin: the first ones, and the end of the words."""

_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+|\n+")


@dataclass(frozen=True)
class Encoded:
    """A conversation as tokens: `trained[i]` says whether the loss counts `input_ids[i]`.

    `turns` are the token ranges [start, end) of the assistant's turns in order; `trained` is the union of those with a weight: all but
    the messages with OpenAI's `weight: 0`. `literals` counts the special tokens that its texts hold, which are text. `words` is where each turn begins to speak or call, after its thought.
    """

    input_ids: list[int]
    trained: list[bool]
    turns: list[tuple[int, int]]
    literals: int = 0
    words: list[int] = field(default_factory=list)

    @property
    def labels(self) -> list[int]:
        """`input_ids` with −100 (PyTorch's ignore index) where nothing is trained."""
        return [
            token if trained else -100
            for token, trained in zip(self.input_ids, self.trained, strict=True)
        ]


def call_places(words: str) -> list[int]:
    """The positions in a turn's words, stripped, at which a call may begin."""
    return list(
        dict.fromkeys(
            [
                *[0, *(match.start() for match in _SENTENCE_END.finditer(words))][: PLACES - 1],
                len(words),
            ]
        )
    )


def encode(renderer: ChatRenderer, messages: list[Message], tools: list[Tool] | None) -> Encoded:
    """Tokens and mask of a conversation, by the tokenizer's own (training) template. Raises DataError."""
    text = renderer.render(messages, tools)
    spans = renderer.assistant_spans(messages, tools, text)
    tokens = renderer.tokenize(text)
    ids, offsets = tokens.ids, tokens.offsets
    trained, turns, words, position = [False] * len(ids), [], list[int](), 0
    for (start, end), message in zip(
        spans, (messages[index] for index in renderer.trainable_turns(messages)), strict=True
    ):
        # A token belongs to the turn it begins in: of one that straddles the border, the model has already seen a part.
        while position < len(offsets) and offsets[position][0] < start:
            position += 1
        first, begun = position, start + renderer.thought_end(message, text[start:end])
        while position < len(offsets) and offsets[position][0] < end:
            trained[position] = is_trained(message)
            position += 1
        turns.append((first, position))
        words.append(next((at for at in range(first, position) if offsets[at][0] >= begun), first))
    return Encoded(ids, trained, turns, literals=text.count(MARK), words=words)


def _bare(text: str) -> str:
    # Templates trim, tokenizers normalise (NFC) and SentencePiece moves spaces: compare what no one may change.
    return "".join(unicodedata.normalize("NFKC", text).split())


def _holds(haystack: str, text: str) -> bool:
    # A template may put a result into JSON (Llama 3.1): then it shows as an escaped string.
    return _bare(text) in haystack or _bare(json.dumps(text, ensure_ascii=False)[1:-1]) in haystack


def check(
    encoded: Encoded,
    renderer: ChatRenderer,
    messages: list[Message],
    row: str = "this row",
) -> None:
    """Prove the mask on the tokens, not on how they were made.

    At least one token is trained; each turn ends with the stop token, trained where the turn is; no token of a tool result, nor of a turn
    with `weight: 0`, is trained; each span decodes to the assistant's words and calls.

    Raises:
        DataError: one of the four does not hold.
    """

    def broken(what: str) -> DataError:
        return DataError(
            f"{row} cannot be trained on: {what}; check its messages against the base model's chat template."
        )

    def text(start: int, end: int) -> str:
        return renderer.decode(encoded.input_ids[start:end])

    if not any(encoded.trained):
        raise broken("no token of it is the assistant's")
    specials, gap, results = renderer.special_tokens, 0, []
    turns, own = iter(encoded.turns), renderer.trainable_turns(messages)
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            results.append((index, message.get("content") or ""))
        if index not in own:
            continue
        start, end = next(turns, (0, 0))
        if any(trained != is_trained(message) for trained in encoded.trained[start:end]) or any(
            encoded.trained[gap:start]
        ):
            raise broken(f"the mask does not match the turn of message {index}")
        turn, between = text(start, end), _bare(text(gap, start))
        if not (
            find_stop_token(renderer.tokenizer, turn)
            and renderer.tokenizer.convert_ids_to_tokens(encoded.input_ids[end - 1]) in specials
        ):
            raise broken(f"the turn of message {index} ends without its stop token")
        for where, result in results:
            if not _holds(between, result):
                raise broken(
                    f"the tool result of message {where} is not outside the trained tokens"
                )
        calls = [
            text
            for name, raw in list_calls([message])
            for text in (name, *argument_texts(decode_arguments(raw)))
        ]
        thought = message.get(THOUGHT) or "" if renderer.template.reasoning else ""
        if not all(
            _holds(_bare(turn), part) for part in (message.get("content") or "", *calls, thought)
        ):
            raise broken(
                f"the trained tokens of message {index} do not decode to what the assistant said"
            )
        gap, results = end, []
    if next(turns, None) or any(encoded.trained[gap:]):
        raise broken("tokens after the last answer are trained")
