"""Patterns of system prompts: what is the same in every session, and what varies.

Many agents write a date or a customer's name into the system prompt, so that every session has
another text. A pattern keeps the words that all prompts of a group share. Between them are parts. A
part varies if its value changed at least twice among the sessions in the order of time. A part that
changed once, such as a rule that was edited, has two known values, and a third value is a change.

White space and the position of line breaks do not count. A date or a time that consists of several
words counts as one word, so that the day and the month vary together.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import pairwise

import msgspec

SIMILARITIES = (0.5, 0.2, 0.05)
"""Smallest shares of shared words with which two prompts belong to one pattern.

A smaller share is used only if most prompts are alone with the share before. This happens if most
of each prompt varies, such as a document.
"""
MOST_ALONE = 0.5
"""Share of sessions alone in their pattern, above which a smaller similarity is used."""
MOST_PATTERNS = 50
MOST_PROMPTS = 2000
"""Maximum number of sessions from which patterns are learned. They are spread evenly over time."""
MOST_EXAMPLES = 5
"""Maximum number of values that are kept of a part that varies."""
FEWEST_CHANGES = 2
"""Minimum number of changes in the order of time with which a part varies."""
MOST_GROWTH = 2
"""Factor by which a part may be longer than its longest value in training."""
_MOST_COMPARISONS = 4_000_000
"""Product of two lengths up to which every repeated word is compared."""

_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec"
_DAYS = "mon tue wed thu fri sat sun"
_DATE_WORD = (
    rf"(?:\d+(?:st|nd|rd|th)?(?!\w)|(?:{'|'.join(_MONTHS.split())})[a-z]*\b\.?"
    rf"|(?:{'|'.join(_DAYS.split())})[a-z]*\b\.?|(?:am|pm|utc|gmt|cet|cest)\b)"
)
_WORD = r"\w+(?:[^\w\s]+\w+)*"
_TOKEN = re.compile(
    rf"(?P<date>(?<!\w){_DATE_WORD}(?:(?:,?[ ]|[-/:.](?=\d)){_DATE_WORD})+)|{_WORD}|[^\w\s]",
    re.IGNORECASE,
)
_GAP = ""
"""A token that no text contains. It separates the blocks of a pattern."""


class PromptPart(msgspec.Struct, frozen=True):
    """A position between the constant words of a pattern.

    Attributes:
        varies: Whether any value is expected. If not, only the known values are expected.
        values: The known values, the newest last. Some examples if the part varies.
        longest: The number of words in the longest value.
    """

    varies: bool
    values: list[str]
    longest: int


class PromptPattern(msgspec.Struct, frozen=True):
    """A group of similar system prompts.

    Attributes:
        blocks: The constant words, in blocks. Between two neighbouring blocks is a part. The first
            and the last block may be empty.
        parts: The parts.
        sessions: The number of sessions with such a prompt.
        text: The newest prompt.
    """

    blocks: list[list[str]]
    parts: list[PromptPart]
    sessions: int
    text: str

    def find_values(self, words: Sequence[str]) -> list[list[str]] | None:
        """Return the words of each part, or `None` if the constant words differ."""
        return _find_values(self.blocks, words)

    def fits(self, words: Sequence[str]) -> bool:
        """Return whether a prompt, split into words, is as in training."""
        values = self.find_values(words)
        return values is not None and all(
            _is_expected(part, value) for part, value in zip(self.parts, values, strict=True)
        )


class PromptDifference(msgspec.Struct, frozen=True):
    """The first place in which a prompt differs from a pattern, with some words around it."""

    before: str
    now: str


def split_words(text: str) -> list[str]:
    """Split a text into words, dates and punctuation marks. White space is dropped."""
    return [" ".join(match[0].split()) for match in _TOKEN.finditer(text)]


def learn_patterns(prompts: Sequence[str]) -> list[PromptPattern]:
    """Return the patterns of system prompts, the most frequent pattern first.

    Args:
        prompts: The system prompt of each session, in the order of time.
    """
    step = max(1, -(-len(prompts) // MOST_PROMPTS))
    chosen = list(prompts)[::-1][::step][::-1]
    words_by_prompt = {prompt: split_words(prompt) for prompt in chosen}
    groups: list[_Group] = []
    for similarity in SIMILARITIES:
        groups = _group_prompts(words_by_prompt, chosen, similarity)
        if count_alone(len(group.prompts) for group in groups) <= MOST_ALONE * len(chosen):
            break
    patterns = [_make_pattern(group, words_by_prompt) for group in groups]
    return sorted(patterns, key=lambda pattern: (-pattern.sessions, pattern.text))


def forget_values(
    pattern: PromptPattern, forgotten: int, words_by_prompt: Mapping[str, Sequence[str]]
) -> PromptPattern | None:
    """Return a pattern without what only forgotten sessions may have said.

    A value stays if a remaining prompt has it in the same part. If no remaining prompt has a value
    of a part, any value is expected, because it is unknown which values were not forgotten. If no
    remaining prompt has the pattern's text, the newest remaining prompt that fits replaces the
    text.

    Args:
        pattern: The pattern.
        forgotten: The number of forgotten sessions among those of all patterns.
        words_by_prompt: The prompts of the remaining sessions, the newest last, with their words.

    Returns:
        The pattern, or `None` if the constant words may be those of a forgotten session alone.
    """
    known: list[set[str]] = [set() for _ in pattern.parts]
    fitting: list[str] = []
    is_shared = pattern.sessions > forgotten
    for prompt, words in words_by_prompt.items():
        values = pattern.find_values(words)
        if values is None:
            continue
        is_shared = True
        for texts, value in zip(known, values, strict=True):
            texts.add(" ".join(value))
        if pattern.fits(words):
            fitting.append(prompt)
    if not is_shared:
        return None
    parts = [
        msgspec.structs.replace(
            part,
            varies=part.varies or texts.isdisjoint(part.values),
            values=[value for value in part.values if not value or value in texts],
        )
        for part, texts in zip(pattern.parts, known, strict=True)
    ]
    text = pattern.text
    if parts and text not in fitting:
        text = fitting[-1] if fitting else _blank_values(pattern)
    return msgspec.structs.replace(pattern, parts=parts, text=text)


def _blank_values(pattern: PromptPattern) -> str:
    """Return the text of a pattern with `…` instead of the value of each part."""
    values = pattern.find_values(split_words(pattern.text))
    if values is None:
        return " … ".join(" ".join(block) for block in pattern.blocks)
    tokens = list(_TOKEN.finditer(pattern.text))
    text, position, end = "", 0, 0
    for block, value in zip(pattern.blocks, values, strict=False):
        position += len(block)
        if value:
            text += f"{pattern.text[end : tokens[position].start()]}…"
            position += len(value)
            end = tokens[position - 1].end()
    return text + pattern.text[end:]


def count_alone(sizes: Iterator[int] | Sequence[int]) -> int:
    """Return the number of groups with one session."""
    return sum(size == 1 for size in sizes)


def find_difference(patterns: Sequence[PromptPattern], prompt: str) -> PromptDifference | None:
    """Return where a prompt differs from the most similar pattern, or `None` if it fits one."""
    words = split_words(prompt)
    if not patterns or any(pattern.fits(words) for pattern in patterns):
        return None
    nearest = max(patterns, key=lambda pattern: _similarity(pattern.blocks, words))
    values = nearest.find_values(words)
    if values is not None:
        for index, (part, value) in enumerate(zip(nearest.parts, values, strict=True)):
            if not _is_expected(part, value):
                around = " ".join(nearest.blocks[index][-3:])
                known = part.values[-1] if part.values else ""
                return PromptDifference(f"{around} {known}".strip(), _shorten([around, *value]))
    return _compare_words(nearest, words)


def _compare_words(pattern: PromptPattern, words: Sequence[str]) -> PromptDifference:
    """Return the first place in which words differ from the constant words of a pattern."""
    constants = _join_blocks(pattern.blocks)
    for tag, first, last, new_first, new_last in _match(constants, words).get_opcodes():
        replaced, new_words = constants[first:last], words[new_first:new_last]
        if tag == "equal":
            continue
        if replaced == [_GAP]:
            part = pattern.parts[constants[:first].count(_GAP)]
            if _is_expected(part, new_words):
                continue
        around = [word or "…" for word in constants[max(0, first - 3) : first]]
        before = [*around, *(word or "…" for word in replaced)]
        return PromptDifference(_shorten(before), _shorten([*around, *new_words]))
    return PromptDifference(_shorten(constants), _shorten(words))


def _join_blocks(blocks: Sequence[Sequence[str]]) -> list[str]:
    """Return the constant words of a pattern, with a mark for each part."""
    return [word for block in blocks for word in [*block, _GAP]][:-1]


def _match(constants: Sequence[str], words: Sequence[str]) -> SequenceMatcher[str]:
    """Return a matcher, which ignores frequent words if both texts are long."""
    is_long = len(constants) * len(words) > _MOST_COMPARISONS
    return SequenceMatcher(None, constants, words, autojunk=is_long)


def _shorten(words: Sequence[str]) -> str:
    return " ".join(words[:12]) + (" …" if len(words) > 12 else "")


def _is_expected(part: PromptPart, value: Sequence[str]) -> bool:
    if part.varies:
        return len(value) <= MOST_GROWTH * max(part.longest, 1)
    return " ".join(value) in part.values


@dataclass
class _Group:
    """Prompts that share their constant words.

    Attributes:
        blocks: The constant words.
        prompts: The prompt of each session, in the order of time.
    """

    blocks: list[list[str]]
    prompts: list[str] = field(default_factory=list)


def _group_prompts(
    words_by_prompt: dict[str, list[str]], prompts: Sequence[str], similarity: float
) -> list[_Group]:
    """Group the prompts. If there are too many groups, the other prompts stay alone."""
    groups: list[_Group] = []
    group_by_prompt: dict[str, _Group] = {}
    for prompt, words in words_by_prompt.items():
        group = _find_group(groups, words, similarity)
        if group is None:
            group = _Group([words])
            groups.append(group)
        group_by_prompt[prompt] = group
    for prompt in prompts:
        group_by_prompt[prompt].prompts.append(prompt)
    return groups


def _find_group(groups: list[_Group], words: list[str], similarity: float) -> _Group | None:
    """Return the group of a prompt, whose blocks become the shared words, or `None`."""
    for group in groups:
        if _find_values(group.blocks, words) is not None:
            return group
    if not groups or len(groups) > MOST_PATTERNS:
        return None
    nearest = max(groups, key=lambda group: _similarity(group.blocks, words))
    if _similarity(nearest.blocks, words) < similarity:
        return None
    nearest.blocks = _merge(nearest.blocks, words)
    return nearest


def _similarity(blocks: Sequence[Sequence[str]], words: Sequence[str]) -> float:
    """Return the share of words that remain constant if a prompt joins a pattern."""
    constants = [word for block in blocks for word in block]
    # Most of a prompt may be in the parts of the pattern.
    total = len(constants) if len(blocks) > 1 else max(len(constants), len(words))
    if not total:
        return float(not words)
    if (Counter(constants) & Counter(words)).total() / total < min(SIMILARITIES):
        return 0.0
    return sum(map(len, _merge(blocks, words))) / total


def _merge(blocks: Sequence[Sequence[str]], words: Sequence[str]) -> list[list[str]]:
    """Return the blocks that a pattern and a prompt share, in the order of both."""
    constants = _join_blocks(blocks)
    merged: list[list[str]] = []
    ends_at_end = False
    for first, new_first, size in _match(constants, words).get_matching_blocks():
        if not size:
            continue
        begins = first == 0 and new_first == 0
        if not merged and not begins:
            merged.append([])
        ends_at_end = first + size == len(constants) and new_first + size == len(words)
        block = constants[first : first + size]
        # A comma between two values is chance.
        if begins or ends_at_end or any(map(_has_letter, block)):
            merged.append(block)
    if not merged:
        return [[], []]
    if not ends_at_end:
        merged.append([])
    return merged if len(merged) > 1 or ends_at_end else [*merged, []]


def _has_letter(word: str) -> bool:
    return any(letter.isalnum() for letter in word)


def _find_values(blocks: Sequence[Sequence[str]], words: Sequence[str]) -> list[list[str]] | None:
    """Return the words between the blocks, or `None` if the blocks do not follow each other."""
    if len(blocks) == 1:
        return [] if list(words) == list(blocks[0]) else None
    head, *middle, tail = blocks
    end = len(words) - len(tail)
    position = len(head)
    if position > end or list(words[:position]) != list(head) or list(words[end:]) != list(tail):
        return None
    values = []
    for block in middle:
        start = _find_block(words, block, position, end)
        if start is None:
            return None
        values.append(list(words[position:start]))
        position = start + len(block)
    return [*values, list(words[position:end])]


def _find_block(words: Sequence[str], block: Sequence[str], start: int, end: int) -> int | None:
    """Return the first position of a block of words between two positions."""
    size = len(block)
    for position in range(start, end - size + 1):
        if words[position] == block[0] and list(words[position : position + size]) == list(block):
            return position
    return None


def _make_pattern(group: _Group, words_by_prompt: dict[str, list[str]]) -> PromptPattern:
    """Return the pattern of a group, with the values of its parts in the order of time."""
    values_by_prompt = {
        prompt: _find_values(group.blocks, words_by_prompt[prompt]) or []
        for prompt in dict.fromkeys(group.prompts)
    }
    parts = []
    for index in range(len(group.blocks) - 1):
        values = [values_by_prompt[prompt][index] for prompt in group.prompts]
        texts = [" ".join(value) for value in values]
        changes = sum(earlier != later for earlier, later in pairwise(texts))
        known = list(dict.fromkeys(reversed(texts)))[::-1]
        varies = changes >= FEWEST_CHANGES
        parts.append(
            PromptPart(
                varies,
                known[-MOST_EXAMPLES:] if varies else known,
                max(map(len, values), default=0),
            )
        )
    return PromptPattern(group.blocks, parts, len(group.prompts), group.prompts[-1])
