"""The pages of the documentation: their files, code blocks, paragraphs and first sentences.

What a page must contain belongs in the tests.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<language>[\w-]*).*$")
_LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)")
_CODE_SPAN = re.compile(r"(`+)(.+?)\1")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_LIST_ITEM = re.compile(r"^\s*([-*+]|\d+[.)])\s+")
_SENTENCE_END = re.compile(r"(?<=[.!?])[*_)\"”]*\s+(?=[\"“(*_`\[]*[A-Z0-9`\[])")
_ABBREVIATIONS = ("e.g.", "i.e.", "etc.", "vs.", "al.")


@dataclass(frozen=True)
class CodeBlock:
    """A fenced block of code.

    Attributes:
        line: The line number of the first line of code, from 1.
        language: The word after the fence, or an empty text.
        text: The code.
    """

    line: int
    language: str
    text: str


def list_pages() -> list[Path]:
    """Return README.md and every page of the folder docs."""
    return [REPOSITORY / "README.md", *sorted(DOCS.rglob("*.md"))]


def name_page(path: Path) -> str:
    """Return the path of a page below the repository, which names a test."""
    return path.relative_to(REPOSITORY).as_posix()


def check_no_failures(failures: Sequence[str]) -> None:
    """Fail the test with one line per failure, and without a traceback."""
    if failures:
        pytest.fail("\n".join(failures), pytrace=False)


def list_code_blocks(text: str) -> list[CodeBlock]:
    """Return the fenced code blocks of a page, in order."""
    blocks: list[CodeBlock] = []
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        number += 1
        if not fence:
            continue
        start = number
        while number < len(lines) and not lines[number].strip().startswith(fence["ticks"]):
            number += 1
        indent = len(fence["indent"])
        code = [
            line[indent:] if not line[:indent].strip() else line for line in lines[start:number]
        ]
        blocks.append(CodeBlock(start + 1, fence["language"], "\n".join(code) + "\n"))
        number += 1
    return blocks


def list_prose_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and text of every line that is not code, a table or a comment.

    Lines of code, tables and comments are yielded as empty lines, because they end a paragraph.
    """
    text = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text)
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if fence:
            if stripped.startswith(fence):
                fence = ""
            yield number, ""
        elif opening := _FENCE.match(line):
            fence = opening["ticks"]
            yield number, ""
        elif stripped.startswith("|"):
            yield number, ""
        else:
            yield number, line


def strip_links(text: str) -> str:
    """Return the text with the words of each link instead of the link."""
    return _LINK.sub(r"\1", text)


def list_paragraphs(text: str) -> list[str]:
    """Return the paragraphs and list items of a page, each as one line without links.

    Headings are left out.
    """
    paragraphs: list[str] = []
    words: list[str] = []

    def end_paragraph() -> None:
        if words:
            paragraphs.append(strip_links(" ".join(words)))
            words.clear()

    for _, line in list_prose_lines(text):
        if not line.strip() or line.startswith("#"):
            end_paragraph()
            continue
        if _LIST_ITEM.match(line):
            end_paragraph()
        words.append(_LIST_ITEM.sub("", line).strip().removeprefix("> "))
    end_paragraph()
    return paragraphs


def split_sentences(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph. A span of code does not end a sentence."""
    spans: list[str] = []

    def hide(span: re.Match[str]) -> str:
        spans.append(span[0])
        return f"`{len(spans) - 1}`"

    hidden = _CODE_SPAN.sub(hide, paragraph)
    sentences: list[str] = []
    for part in _SENTENCE_END.split(hidden):
        if sentences and sentences[-1].endswith(_ABBREVIATIONS):
            sentences[-1] += " " + part
        else:
            sentences.append(part)
    return [
        re.sub(r"`(\d+)`", lambda number: spans[int(number[1])], sentence) for sentence in sentences
    ]


def count_words(sentence: str) -> int:
    """Return the number of words. A span of code is one word."""
    return len(_CODE_SPAN.sub("code", sentence).split())
