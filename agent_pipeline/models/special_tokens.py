"""Special tokens, and texts of users that look like special tokens.

A special token that a user typed is text: a user's `<|im_end|>` ends no turn. A rendered
conversation is one string, which does not show whether a user or the chat template wrote a part of
it. So a special token in a message (a literal) gets a mark before the template sees the message:
a character that no text may hold, after the token's first character. The tokenizer that reads a
marked text looks for special tokens first and removes the marks afterwards. Texts without literals
are tokenized as usual.

Which special tokens end a turn belongs in `template_probe` and `families`.
"""

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

MARK = "\ufdd0"
"""Character that marks plain text. It is a noncharacter that Unicode reserves for internal use."""

Value = TypeVar("Value")

_COMMON_SHAPE = re.compile(r"<[^<>\[\]\s]+>|\[[^<>\[\]\s]+\]")
_LOOKS_SPECIAL = re.compile(r"<[|｜].*[|｜]>", re.DOTALL)


@dataclass(frozen=True)
class TokenizedText:
    """A rendered text, as tokens.

    Attributes:
        ids: The token ids.
        offsets: For each token, the range [start, end) of characters that it stands for. A text
            without marks has no offsets if the tokenizer is not a fast one.
    """

    ids: list[int]
    offsets: list[tuple[int, int]]


@dataclass(frozen=True)
class _LiteralFinder:
    """The special tokens of a tokenizer, and a pattern that finds all texts that may be one."""

    tokens: set[str]
    pattern: re.Pattern[str]

    def mark_text(self, text: str) -> str:
        return self.pattern.sub(self._mark_match, text)

    def _mark_match(self, match: re.Match[str]) -> str:
        token = match[0]
        return token[:1] + MARK + token[1:] if token in self.tokens else token


def special_tokens(tokenizer: "PreTrainedTokenizerBase") -> set[str]:
    """Return all tokens that mark the structure of a conversation.

    These are the tokenizer's special tokens, and added tokens that look like one (`<|user|>`).
    DeepSeek marks its special tokens as ordinary ones; llama.cpp's converter decides as we do.
    """
    tokens = set(tokenizer.all_special_tokens)
    for token in tokenizer.added_tokens_decoder.values():
        if token.special or _LOOKS_SPECIAL.fullmatch(str(token)):
            tokens.add(str(token))
    return tokens


def mark_literals(tokenizer: "PreTrainedTokenizerBase", value: Value) -> Value:
    """Insert a mark into each special token in a text, or in all texts of a list or object."""
    marked_value: Value = _mark_value(_literal_finder(tokenizer, len(tokenizer)), value)
    return marked_value


def _mark_value(finder: _LiteralFinder, value: object) -> Any:
    if isinstance(value, str):
        return finder.mark_text(value)
    if isinstance(value, dict):
        return {_mark_value(finder, key): _mark_value(finder, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_mark_value(finder, item) for item in value]
    return value


def remove_marks(text: str) -> str:
    """Remove the marks from a text, which gives the text that a server renders."""
    return text.replace(MARK, "")


def tokenize(tokenizer: "PreTrainedTokenizerBase", text: str) -> TokenizedText:
    """Tokenize a rendered text, with or without marks."""
    if MARK in text:
        marked_encoding = _literal_tokenizer(tokenizer, len(tokenizer)).encode(
            text, add_special_tokens=False
        )
        return TokenizedText(marked_encoding.ids, marked_encoding.offsets)
    encoding = tokenizer(
        text, add_special_tokens=False, return_offsets_mapping=tokenizer.is_fast, verbose=False
    )
    return TokenizedText(encoding.input_ids, encoding.get("offset_mapping") or [])


class TokenCounter:
    """A counter of the tokens of many rendered texts that share parts, such as system messages.

    A tokenizer reads the parts between special tokens separately, so each part is counted once. The
    first texts are also counted as a whole. If a tokenizer counts a whole text differently, no text
    is counted in parts.

    Args:
        tokenizer: The tokenizer.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        longest_first = sorted(filter(None, special_tokens(tokenizer)), key=len, reverse=True)
        self._special = re.compile(f"({'|'.join(map(re.escape, longest_first))})")
        self._reads_parts = bool(longest_first) and tokenizer.is_fast
        self._texts_to_compare = _COMPARED_TEXTS
        self._count_part = lru_cache(maxsize=_KEPT_PARTS)(self._count_new_part)

    def count(self, text: str) -> int:
        """Return the number of tokens of a rendered text."""
        if not self._reads_parts or MARK in text:
            return len(tokenize(self._tokenizer, text).ids)
        count = sum(self._count_part(part) for part in self._special.split(text) if part)
        if self._texts_to_compare:
            self._texts_to_compare -= 1
            whole_count = len(tokenize(self._tokenizer, text).ids)
            self._reads_parts = whole_count == count
            return whole_count
        return count

    def _count_new_part(self, part: str) -> int:
        backend = self._tokenizer.backend_tokenizer
        return len(backend.encode_batch_fast([part], add_special_tokens=False)[0])


_COMPARED_TEXTS = 10
"""Number of texts that a `TokenCounter` also counts as a whole."""
_KEPT_PARTS = 5_000
"""Number of parts whose counts a `TokenCounter` remembers."""


# `vocabulary_size` is part of the cache's key, because a tokenizer may be given more tokens.
@lru_cache(maxsize=4)
def _literal_finder(tokenizer: "PreTrainedTokenizerBase", vocabulary_size: int) -> _LiteralFinder:
    """Return the finder of a tokenizer's special tokens.

    Gemma has thousands of tokens of the common shape, so the pattern names only the others.
    """
    tokens = special_tokens(tokenizer) if tokenizer.is_fast else set()
    unusual = [token for token in tokens if token and not _COMMON_SHAPE.fullmatch(token)]
    unusual.sort(key=len, reverse=True)
    alternatives = [re.escape(token) for token in unusual] + [_COMMON_SHAPE.pattern]
    return _LiteralFinder(tokens, re.compile("|".join(alternatives)))


@lru_cache(maxsize=4)
def _literal_tokenizer(tokenizer: "PreTrainedTokenizerBase", vocabulary_size: int) -> "Tokenizer":
    """Return a copy of the tokenizer that removes marks after it has found the special tokens."""
    from tokenizers import Tokenizer

    state = json.loads(tokenizer.backend_tokenizer.to_str())
    tokens = special_tokens(tokenizer)
    normalizers = [{"type": "Replace", "pattern": {"String": MARK}, "content": ""}]
    if state["normalizer"]:
        normalizers.append(state["normalizer"])
    state["normalizer"] = {"type": "Sequence", "normalizers": normalizers}
    state["truncation"] = None
    state["padding"] = None
    for token in state["added_tokens"]:
        if token["content"] in tokens:
            # A normalized token would be looked for after the marks are gone.
            token["normalized"] = False
    return Tokenizer.from_str(json.dumps(state))
