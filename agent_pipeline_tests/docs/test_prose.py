"""The language of the pages: whole pages, short lines and short sentences."""

from pathlib import Path

import pytest

from agent_pipeline_tests.docs.pages import (
    check_no_failures,
    count_words,
    list_pages,
    list_paragraphs,
    list_prose_lines,
    name_page,
    split_sentences,
    strip_links,
)

PAGES = list_pages()
LONGEST_LINE = 100
LONGEST_SENTENCE = 40


@pytest.mark.parametrize("path", PAGES, ids=name_page)
def test_pages_are_written(path: Path) -> None:
    is_unwritten = "To be written." in path.read_text(encoding="utf-8")
    check_no_failures([f"{name_page(path)} is not written"] if is_unwritten else [])


@pytest.mark.parametrize("path", PAGES, ids=name_page)
def test_prose_lines_have_at_most_100_characters(path: Path) -> None:
    """The address of a link does not count."""
    failures = [
        f"{name_page(path)}:{number}: {len(line)} characters"
        for number, line in list_prose_lines(path.read_text(encoding="utf-8"))
        if len(strip_links(line)) > LONGEST_LINE
    ]
    check_no_failures(failures)


@pytest.mark.parametrize("path", PAGES, ids=name_page)
def test_sentences_have_at_most_40_words(path: Path) -> None:
    failures = [
        f"{name_page(path)}: {count_words(sentence)} words: {sentence}"
        for paragraph in list_paragraphs(path.read_text(encoding="utf-8"))
        for sentence in split_sentences(paragraph)
        if count_words(sentence) > LONGEST_SENTENCE
    ]
    check_no_failures(failures)


def test_sentences_are_split_at_their_ends() -> None:
    paragraph = "Run `a. B c` first. Then see [the page](x.md). It takes 1.5 s, e.g. On a CPU."
    assert list_paragraphs(paragraph) == [
        "Run `a. B c` first. Then see the page. It takes 1.5 s, e.g. On a CPU."
    ]
    assert split_sentences(list_paragraphs(paragraph)[0]) == [
        "Run `a. B c` first.",
        "Then see the page.",
        "It takes 1.5 s, e.g. On a CPU.",
    ]
