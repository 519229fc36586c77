"""Partition keys: one spelling, and never a way out of the lake."""

import os
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from agent_pipeline.errors import PartitionError
from agent_pipeline.keys import PartitionKey, make_key, parse_key
from agent_pipeline.sources.formats.file_source import usable_key
from agent_pipeline.storage.lake import Lake

ANY = st.one_of(
    st.text(max_size=30),
    st.text("ab./\\%~|,[]-_ \n\0:", max_size=12),
    st.sampled_from(["..", ".", "../../etc", "a/../b", "~", "C:"]),
)


def test_names_as_people_write_them_become_slugs():
    project, agent = make_key("My Project", "Agent #1 (new)")
    assert re.fullmatch("my-project-[0-9a-f]{8}", project) and re.fullmatch(
        "agent-1-new-[0-9a-f]{8}", agent
    )
    assert make_key("my-project", "007") == PartitionKey("my-project", "007")


def test_a_key_reads_back_as_it_was_written():
    assert parse_key("tau/airline") == PartitionKey("tau", "airline")
    assert str(parse_key("a.b_c-1/0")) == "a.b_c-1/0"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "a",
        "a/",
        "/b",
        "a/b/c",
        "A/b",
        "a b/c",
        "a/..",
        "../a",
        "a/.b",
        "a/b..c",
        "a/-b",
        "a/_b",
        "a/b\n",
        "a/b\0",
        "a|b/c",
        "a,b/c",
        "[a]/b",
        "a/b...",
        "ä/b",
        "a/" + "b" * 101,
    ],
)
def test_what_is_not_in_its_one_spelling_is_refused_in_a_sentence(text):
    with pytest.raises(PartitionError, match="project/agent"):
        parse_key(text)


@pytest.mark.parametrize(
    "name", ["", "..", "...", "-", "日本", "../../etc", ".hidden", "a..b", "x" * 101]
)
def test_a_name_of_which_nothing_usable_is_left_is_refused(name):
    with pytest.raises(PartitionError, match="cannot be a partition"):
        make_key(name, "a")


NAMES = st.one_of(
    ANY,
    st.text("abAB -_.öøüé", max_size=5),
    st.sampled_from(["Süd", "Sød", "Foo Bar", "foo-bar", "FOO-BAR", "foo bar"]),
)


@given(NAMES, NAMES)
@example("Süd", "Sød")
@example("Foo Bar", "foo-bar")
@example("X", "x")
def test_two_names_are_never_one_key(first, second):
    """A store with agents `Foo Bar` and `foo-bar` would otherwise train one model on both."""
    assume(unicodedata.normalize("NFC", first) != unicodedata.normalize("NFC", second))
    try:
        assert make_key(first, "a") != make_key(second, "a")
    except PartitionError:
        assert usable_key(first, "a") != usable_key(second, "a")


def test_a_name_in_two_unicode_forms_is_one_name():
    assert make_key(unicodedata.normalize("NFC", "Süd"), "a") == make_key(
        unicodedata.normalize("NFD", "Süd"), "a"
    )


@given(ANY, ANY)
def test_a_made_key_is_always_one_that_can_be_read(project, agent):
    try:
        key = make_key(project, agent)
    except PartitionError:
        return
    assert parse_key(str(key)) == key
    assert make_key(*key) == key


@given(ANY)
def test_no_key_leaves_the_lakes_folder(text):
    try:
        key = parse_key(text)
    except PartitionError:
        return
    lake = Lake("/lake", Path("/cache"))
    for path in (
        lake.table("sessions", key),
        lake.folder("jsonl", "sessions", key),
        lake.root / "models" / lake._local_copy("m", key).relative_to("/cache"),
    ):
        assert os.path.normpath(str(path)) == str(path)
        assert Path(str(path)).is_relative_to("/lake")
        assert not any(character in str(path) for character in "\0\n|,[]\\")
