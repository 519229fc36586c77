"""Special tokens that a text holds literally are text: `<|im_end|>` typed by a user ends no turn.

A rendered conversation is one string, in which nothing tells what a user typed from what the chat template wrote. So such literals are
marked before the template sees them (a character that no text may hold, after their first one), and the tokenizer that reads a marked text
looks for special tokens first and takes the marks away afterwards. Texts without literals are tokenised as ever.
"""

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

MARK = "\ufdd0"
"""A noncharacter: Unicode keeps it for a program's own use."""

Value = TypeVar("Value")

_SHAPE = re.compile(r"<[^<>\[\]\s]+>|\[[^<>\[\]\s]+\]")
_LOOKS_SPECIAL = re.compile(r"<[|｜].*[|｜]>", re.DOTALL)


def special_tokens(tokenizer: "PreTrainedTokenizerBase") -> set[str]:
    """All tokens that frame a conversation: the special ones, named or merely added, and those that look so (`<|user|>`; DeepSeek marks its
    own as ordinary), as llama.cpp's converter decides."""
    added = (
        token
        for token in tokenizer.added_tokens_decoder.values()
        if token.special or _LOOKS_SPECIAL.fullmatch(str(token))
    )
    return {*map(str, added), *tokenizer.all_special_tokens}


def marked(tokenizer: "PreTrainedTokenizerBase", value: Value) -> Value:
    """`value` (a text, or lists and objects of them) with a mark in every special token that its texts hold."""
    return _marked(*_specials(tokenizer, len(tokenizer)), value)


def _marked(specials: set[str], pattern: re.Pattern[str], value: Any) -> Any:
    if isinstance(value, str):
        return pattern.sub(
            lambda found: found[0][:1] + MARK + found[0][1:] if found[0] in specials else found[0],
            value,
        )
    if isinstance(value, dict):
        return {
            _marked(specials, pattern, key): _marked(specials, pattern, each)
            for key, each in value.items()
        }
    return (
        [_marked(specials, pattern, each) for each in value] if isinstance(value, list) else value
    )


def unmarked(text: str) -> str:
    """A text without its marks: what a server renders."""
    return text.replace(MARK, "")


def tokens(
    tokenizer: "PreTrainedTokenizerBase", text: str
) -> tuple[list[int], list[tuple[int, int]]]:
    """The ids of a rendered text, and the range of characters [start, end) that each of them stands for."""
    if MARK in text:
        found = _reader(tokenizer, len(tokenizer)).encode(text, add_special_tokens=False)
        return found.ids, found.offsets
    encoding = tokenizer(
        text, add_special_tokens=False, return_offsets_mapping=tokenizer.is_fast, verbose=False
    )
    return encoding.input_ids, encoding.get("offset_mapping") or []


def token_ids(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    return tokens(tokenizer, text)[0]


@lru_cache(maxsize=4)
def _specials(tokenizer: "PreTrainedTokenizerBase", size: int) -> tuple[set[str], re.Pattern[str]]:
    """The special tokens, and what finds them. Gemma has thousands of one shape, so the pattern names only those of another."""
    specials = special_tokens(tokenizer) if tokenizer.is_fast else set()
    others = sorted(
        (token for token in specials if token and not _SHAPE.fullmatch(token)),
        key=len,
        reverse=True,
    )
    return specials, re.compile("|".join([*map(re.escape, others), _SHAPE.pattern]))


@lru_cache(maxsize=4)
def _reader(tokenizer: "PreTrainedTokenizerBase", size: int) -> "Tokenizer":
    """The tokenizer, which takes marks away once it has found the special tokens."""
    from tokenizers import Tokenizer

    state, specials = json.loads(tokenizer.backend_tokenizer.to_str()), special_tokens(tokenizer)
    own = [state["normalizer"]] if state["normalizer"] else []
    takes_away = {"type": "Replace", "pattern": {"String": MARK}, "content": ""}
    state |= {
        "normalizer": {"type": "Sequence", "normalizers": [takes_away, *own]},
        "truncation": None,
        "padding": None,
    }
    for token in state["added_tokens"]:
        if token["content"] in specials:
            token["normalized"] = (
                False  # a normalised one would be looked for when the marks are gone
            )
    return Tokenizer.from_str(json.dumps(state))
