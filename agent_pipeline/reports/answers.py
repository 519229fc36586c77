"""An answer in one form for all models, and the difference of two answers.

The recorded answer is stored as JSON or text, and a model's answer in the notation of its family.
Here both become the same text: the words, and each call as its tool and its indented arguments.
Scoring answers does not belong here.
"""

import json
import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any, Literal

import msgspec

from agent_pipeline.models.families import parse_reply
from agent_pipeline.reports.chat import summarize_arguments
from agent_pipeline.sessions.json_text import parse_object
from agent_pipeline.sessions.session import Tool

MAX_DIFF_TOKENS = 1_500
"""Maximum number of words of an answer whose difference is computed."""
MIN_LIKENESS = 0.4
"""Share of equal words below which two texts count as different from the first to the last word.
Single equal words would only confuse.
"""
_MAX_LINE = 110
_WORD = re.compile(r"\s+|\w+|[^\w\s]")

Change = Literal["same", "removed", "added"]


class DiffPart(msgspec.Struct, frozen=True):
    """A part of a text, compared with another text.

    Attributes:
        change: Whether both texts have the part, or only one of them.
        text: The part.
    """

    change: Change
    text: str


class CommonAnswer(msgspec.Struct, frozen=True):
    """An answer in the form that is the same for all models.

    Attributes:
        text: The words, and each call as its tool and its indented arguments.
        line: The answer in one short line.
    """

    text: str
    line: str


def read_expected(text: str, turn_class: str | None) -> CommonAnswer:
    """Return the recorded answer of an evaluation: calls as JSON, one per line, or a text."""
    if turn_class == "call":
        calls = [parse_object(line) for line in text.splitlines() if line.strip()]
        if calls and all(call and isinstance(call.get("name"), str) for call in calls):
            return _make_answer(
                "", [(call["name"], call.get("arguments")) for call in calls if call]
            )
    return _make_answer(text, [])


def read_answer(text: str, tools: Sequence[Tool] = ()) -> CommonAnswer:
    """Return the answer that a model generated.

    If a call cannot be parsed, the answer is the whole text.
    """
    reply = parse_reply(text, tools)
    if reply.invalid or not reply.calls:
        return _make_answer(text.strip() if reply.invalid else reply.text, [])
    return _make_answer(reply.text, [(call.name, call.arguments) for call in reply.calls])


def _make_answer(words: str, calls: Sequence[tuple[str, Any]]) -> CommonAnswer:
    parts = [words] if words.strip() else []
    lines = [" ".join(words.split())] if words.strip() else []
    for name, arguments in calls:
        is_text = isinstance(arguments, str)
        raw = arguments if is_text else json.dumps(arguments, ensure_ascii=False)
        indented = (
            raw if is_text else json.dumps(arguments, ensure_ascii=False, indent=2, sort_keys=True)
        )
        parts.append(f"{name}\n{indented}")
        lines.append(f"{name}({summarize_arguments(raw)})")
    line = "; ".join(lines) or "(nothing)"
    return CommonAnswer(
        text="\n\n".join(parts) or "(nothing)",
        line=line if len(line) <= _MAX_LINE else f"{line[: _MAX_LINE - 1]}…",
    )


def compare_texts(expected: str, actual: str) -> list[DiffPart]:
    """Return the parts of two texts in the order of reading.

    The parts that are not added form the expected text, and the parts that are not removed form the
    actual text. If a text is very long, or if the texts are not alike, they have no equal part.
    """
    old, new = _WORD.findall(expected), _WORD.findall(actual)
    if max(len(old), len(new)) > MAX_DIFF_TOKENS:
        return [
            DiffPart(change, text)
            for change, text in _drop_empty(("removed", expected), ("added", actual))
        ]
    matcher = SequenceMatcher(None, old, new, autojunk=False)
    blocks = matcher.get_matching_blocks()
    equal = [word for block in blocks for word in old[block.a : block.a + block.size]]
    if _count_words(equal) < MIN_LIKENESS * max(_count_words(old), _count_words(new)):
        return [
            DiffPart(change, text)
            for change, text in _drop_empty(("removed", expected), ("added", actual))
        ]
    parts: list[DiffPart] = []
    for kind, old_start, old_end, new_start, new_end in matcher.get_opcodes():
        if kind == "equal":
            parts.append(DiffPart("same", "".join(old[old_start:old_end])))
            continue
        changed = _drop_empty(
            ("removed", "".join(old[old_start:old_end])), ("added", "".join(new[new_start:new_end]))
        )
        parts += [DiffPart(change, text) for change, text in changed]
    return parts


def _count_words(tokens: Sequence[str]) -> int:
    return sum(not token.isspace() for token in tokens)


def _drop_empty(*parts: tuple[Change, str]) -> list[tuple[Change, str]]:
    return [(change, text) for change, text in parts if text]
