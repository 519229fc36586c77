"""Which reader takes what: detection, a reader named by hand, readers of the user's own, several stores as one."""

import shutil
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from agent_pipeline.errors import PartitionError, SettingsError, StoreError
from agent_pipeline.ingestion.reading import fingerprint_partition
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.chat import VERSION
from agent_pipeline.sources import (
    Location,
    find,
    open_source,
    open_sources,
    parse_location,
    plugins,
    readers,
)
from agent_pipeline.sources.platforms.litellm import LiteLLMSource
from agent_pipeline_tests.sources.platforms import exports
from agent_pipeline_tests.sources.platforms.exports import write
from agent_pipeline_tests.stores import HELLO, omniagents_home, sessions_db

KEY = PartitionKey("shop", "support")

MINE = """
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Session

from agent_pipeline.sources import TraceSource

class Mine(TraceSource):
    name = "mine"
    looks_like = "a file called mine"
    schemes = ("mine",)
    @classmethod
    def detect(cls, path):
        return path.name == "mine"
    def partitions(self):
        return [PartitionKey("shop", "support")]
    def sessions(self, key):
        yield Session(session_id="own", project="shop", agent="support", source="mine")
    def signature(self):
        return "x"

class NoNotes(Mine):
    name = "no_notes"
    def __init__(self, path):
        pass

class Half(TraceSource):
    name = "half"

class Stranger:
    name = "stranger"

class Failing(Mine):
    name = "failing"
    def {where}(self, *any):
        raise RuntimeError("a bug\\nin two lines")

class Strange(Mine):
    name = "strange"
    def sessions(self, key):
        yield {{"session_id": 1}}

thing = 5
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A module of the user's, named anew for each test; the function writes it and names its readers."""
    monkeypatch.syspath_prepend(str(tmp_path / "user"))
    (tmp_path / "user").mkdir()
    (tmp_path / "mine").touch()
    module = f"user_{abs(hash(tmp_path))}"

    def written(name: str, where: str = "partitions") -> str:
        (tmp_path / "user" / f"{module}.py").write_text(
            MINE.replace("{where}", where).replace("{{", "{").replace("}}", "}"), encoding="utf-8"
        )
        return f"{module}:{name}"

    yield written
    plugins.plugin_readers.cache_clear()


def sentence(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert "\n" not in text and text.endswith(".")
    return text


# The user's own


def test_a_reader_of_the_users_own_is_asked_before_ours(mine, tmp_path):
    source = open_source(tmp_path / "mine", readers([mine("Mine")]))
    assert source.name == "mine" and [session.session_id for session in source.sessions(KEY)] == [
        "own"
    ]
    assert open_source(parse_location("mine://host"), readers([mine("NoNotes")])).notes == []


def test_an_entry_point_brings_a_reader_too(mine, monkeypatch, tmp_path):
    point = EntryPoint(name="mine", value=mine("Mine"), group=plugins.GROUP)
    monkeypatch.setattr(
        plugins, "entry_points", lambda group: [point] if group == plugins.GROUP else []
    )
    assert open_source(tmp_path / "mine", readers()).name == "mine"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Gone", "cannot be loaded .AttributeError"),
        ("thing", "subclass of agent_pipeline.sources.TraceSource"),
        ("Stranger", "subclass of agent_pipeline.sources.TraceSource"),
        ("Half", "lacks partitions, sessions, looks_like"),
    ],
)
def test_a_reader_that_is_none_costs_one_sentence(mine, name, why):
    with pytest.raises(SettingsError, match=why) as error:
        readers([mine(name)])
    assert name in sentence(error)


@pytest.mark.parametrize("dotted", ["nonsense", "a.b.c:D", ":x", "json:"])
def test_a_name_that_leads_nowhere_costs_one_sentence(dotted):
    with pytest.raises(SettingsError) as error:
        readers([dotted])
    assert repr(dotted) in sentence(error)


@pytest.mark.parametrize("where", ["__init__", "detect", "partitions", "sessions", "signature"])
def test_a_reader_that_fails_costs_one_sentence_wherever_it_fails(mine, tmp_path, where):
    with pytest.raises(
        StoreError,
        match=r"The reader '.*:Failing' .* failed on .*mine .RuntimeError: a bug.: correct the reader",
    ) as error:
        source = open_source(tmp_path / "mine", readers([mine("Failing", where)]))
        source.partitions()
        list(source.sessions(KEY))
        source.signature()
    sentence(error)


def test_a_reader_that_gives_no_sessions_costs_one_sentence(mine, tmp_path):
    with pytest.raises(StoreError, match=r"dict.*Session") as error:
        list(open_source(tmp_path / "mine", readers([mine("Strange")])).sessions(KEY))
    sentence(error)


# Locations


def test_a_reader_that_is_named_is_taken_and_detection_is_not_asked(tmp_path):
    path = write(tmp_path / "log.jsonl", exports.litellm())
    assert open_source(path).name == "litellm"
    assert open_source(parse_location(f"openai_chat:{path}")).name == "openai_chat"


def test_a_reader_that_does_not_exist_is_named_with_those_that_do(tmp_path):
    with pytest.raises(StoreError, match="omniagents") as error:
        open_source(parse_location(f"otle:{tmp_path}"))
    sentence(error)


def test_a_file_whose_name_has_a_colon_is_that_file(tmp_path):
    path = write(tmp_path / "langfuse:x.jsonl", exports.litellm())
    assert parse_location("langfuse:x.jsonl", tmp_path) == Location(str(path))
    assert parse_location("langfuse:other", tmp_path) == Location(
        str(tmp_path / "other"), "langfuse"
    )


def test_a_scheme_that_nobody_reads_is_a_sentence():
    with pytest.raises(StoreError, match="mysql") as error:
        open_source(parse_location("mysql://u:secret@host/db"))
    assert "secret" not in sentence(error)


# Folders


def test_a_folder_of_one_kind_is_one_store_and_of_one_of_several_kinds_those_to_read_must_be_named(
    tmp_path,
):
    write(tmp_path / "logs" / "a.jsonl", exports.litellm()[:2])
    write(tmp_path / "logs" / "deep" / "b.jsonl", exports.litellm()[2:])
    assert [(path, reader.name) for path, reader in find(tmp_path).stores] == [
        (tmp_path, "litellm")
    ]
    assert [session.session_id for session in open_source(tmp_path).sessions(KEY)] == ["s1"]
    omniagents_home(tmp_path / "home")
    write(tmp_path / "notes.json", {"nothing": "known"})
    found = find(tmp_path)
    assert [(path, reader.name) for path, reader in found.stores] == [
        (tmp_path / "home", "omniagents"),
        (tmp_path / "logs", "litellm"),
    ]
    assert found.unknown == [tmp_path / "notes.json"]
    with pytest.raises(StoreError, match=r"2 session stores.*home, .*logs") as error:
        open_source(tmp_path)
    sentence(error)


def test_files_of_no_kind_among_those_of_one_are_noted(tmp_path):
    write(tmp_path / "logs" / "a.jsonl", exports.litellm())
    write(tmp_path / "notes.json", {"nothing": "known"})
    source = open_source(tmp_path)
    source.partitions()
    assert source.name == "litellm" and any(
        "1 files under" in note and "notes.json" in note for note in source.notes
    )


def test_a_home_whose_sessions_were_moved_is_no_store_and_its_databases_are_no_agents(tmp_path):
    home = omniagents_home(tmp_path / "home")
    (home / "sessions").rename(home / "gone")
    with pytest.raises(StoreError, match="1 session store"):
        open_source(home)


def test_a_link_to_a_folder_is_not_followed_and_is_said(tmp_path):
    write(tmp_path / "logs" / "a.jsonl", exports.litellm())
    (tmp_path / "logs" / "round").symlink_to(tmp_path)
    (tmp_path / "again").symlink_to(tmp_path / "logs")
    found = find(tmp_path)
    assert [path for path, _ in found.stores] == [tmp_path]
    assert found.unknown == [tmp_path / "again", tmp_path / "logs" / "round"]


def test_a_folder_called_sessions_alone_makes_no_home_of_omniagents(tmp_path):
    write(tmp_path / "sessions" / "2026" / "a.jsonl", exports.litellm())
    assert open_source(tmp_path).name == "litellm"
    (tmp_path / "new" / "sessions").mkdir(parents=True)
    assert open_source(tmp_path / "new").partitions() == []


# Several stores


def two_homes(tmp_path: Path) -> list[Location]:
    one = omniagents_home(
        tmp_path / "one", {"a": HELLO, "c": HELLO, "d": HELLO}, verdicts=[("a", "acceptable")]
    )
    two = omniagents_home(
        tmp_path / "two",
        {"b": HELLO, "c": HELLO[:1], "c~2": HELLO},
        verdicts=[("c", "unacceptable")],
    )
    omniagents_home(two, key="office/rooms")
    return [Location(str(one)), Location(str(two))]


def test_the_partitions_of_several_stores_are_the_union_and_one_in_two_has_the_sessions_of_both(
    tmp_path,
):
    source = open_sources(two_homes(tmp_path))
    assert source.partitions() == [("office", "rooms"), KEY]
    assert [session.session_id for session in source.sessions(PartitionKey("office", "rooms"))] == [
        "s1"
    ]
    sessions = list(source.sessions(KEY))
    assert [session.session_id for session in sessions] == ["a", "b", "c", "c~2", "c~2~2", "d"]
    assert [
        len(session.messages) for session in sessions if session.session_id.startswith("c")
    ] == [2, 1, 2]
    assert [session.judgment for session in sessions if session.session_id.startswith("c")] == [
        None,
        "unacceptable",
        None,
    ]
    assert any("2 session ids are in more than one store" in note for note in source.notes)


def test_several_stores_have_the_versions_of_all_their_readers(tmp_path):
    log = write(tmp_path / "log.jsonl", exports.litellm())
    assert open_sources([*two_homes(tmp_path), Location(str(log))]).reader_versions() == {
        "omniagents": 1,
        "litellm": LiteLLMSource.version,
        "messages": VERSION,
    }


def test_one_store_in_a_list_is_that_store(tmp_path):
    assert open_sources(two_homes(tmp_path)[:1]).name == "omniagents"


def test_the_version_and_the_signature_change_with_any_of_the_stores(tmp_path):
    locations = two_homes(tmp_path)
    seen = {
        (
            open_sources(locations).signature(),
            fingerprint_partition(open_sources(locations).stored(KEY)),
        )
        for _ in range(2)
    }
    assert len(seen) == 1
    omniagents_home(tmp_path / "one", {"new": HELLO}, key="shop/other")
    assert open_sources(locations).signature() != next(iter(seen))[0]


def test_a_side_chain_follows_its_parent_to_its_new_name(tmp_path):
    records = exports.written("openinference_otlp.jsonl")
    first, second = (
        write(tmp_path / "one" / "shop.jsonl", records),
        write(tmp_path / "two" / "shop.jsonl", [*records, exports.guard()]),
    )
    sessions = list(open_sources([Location(str(first)), Location(str(second))]).sessions(KEY))
    assert [(each.session_id, each.parent_session_id) for each in sessions] == [
        ("s1", None),
        ("s1~2", None),
        ("s1~side1", "s1~2"),
    ]


@pytest.mark.parametrize("how", ["missing", "no store", "unreadable tree"])
def test_a_broken_store_hides_no_partition_but_no_partition_is_read_without_it(tmp_path, how):
    locations = two_homes(tmp_path)
    shutil.rmtree(tmp_path / "two")
    if how == "no store":
        (tmp_path / "two").write_text("nothing", encoding="utf-8")
    if how == "unreadable tree":
        omniagents_home(tmp_path / "two", key="shop/S\u00fcd")
        omniagents_home(tmp_path / "two", key="shop/Su\u0308d")
    source = open_sources(locations)
    assert source.partitions() == [KEY]
    assert any(str(tmp_path / "two") in note for note in source.notes)
    with pytest.raises(StoreError, match="sessions of shop/support") as error:
        list(source.sessions(KEY))
    assert str(tmp_path / "two") in sentence(error)
    assert source.signature() == source.signature()


def test_a_store_that_breaks_for_one_agent_only_keeps_no_other_from_being_read(tmp_path):
    locations = two_homes(tmp_path)
    sessions_db(tmp_path / "two").write_bytes(b"no database")
    source = open_sources(locations)
    assert len(list(source.sessions(PartitionKey("office", "rooms")))) == 1
    with pytest.raises(StoreError, match=r"sessions\.db is not an SQLite database"):
        list(source.sessions(KEY))


def test_stores_that_all_fail_are_a_failure_and_a_partition_that_none_has_is_named(tmp_path):
    with pytest.raises(StoreError, match="does not exist"):
        open_sources([Location(str(tmp_path / "a")), Location(str(tmp_path / "b"))])
    with pytest.raises(PartitionError, match=r"shop/nobody: .*office/rooms, shop/support"):
        list(open_sources(two_homes(tmp_path)).sessions(PartitionKey("shop", "nobody")))
