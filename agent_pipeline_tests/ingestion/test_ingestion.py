"""The table of sessions: the same bytes whether it is made anew or copied, and nothing copied that changed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_pipeline.ingestion import reading, table_pass
from agent_pipeline.ingestion.block_list import BlockList
from agent_pipeline.ingestion.ingestion import IngestionResult, ingest
from agent_pipeline.ingestion.privacy_scan import scan_new_sessions
from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.ingestion.seen_sessions import SEEN_TABLE
from agent_pipeline.ingestion.volume import VolumeError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sessions.session import Session
from agent_pipeline.sessions.tables import restore_session, to_rows
from agent_pipeline.sources import open_source
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.stores import (
    HELLO,
    add_sessions,
    call,
    execute,
    omniagents_home,
    result,
    sessions_db,
    user,
)

KEY = PartitionKey("shop", "support")
RAW = ReadingOptions(redaction=RedactionOptions(enabled=False))


def asks(arguments: str, name: str = "f", ask: str = "x") -> list[dict[str, Any]]:
    return [
        user(ask),
        call(name, "1", arguments),
        result("y", "1"),
        {"role": "assistant", "content": "done"},
    ]


def made(home: Path, lake: Path | str, options: ReadingOptions = RAW) -> IngestionResult:
    found = ingest(open_source(home), KEY, options, Lake(str(lake)))
    found.table.commit()
    return found


def sessions_in(lake: Path) -> list[Session]:
    return [restore_session(row) for row in to_rows(Lake(str(lake)).open("sessions", KEY).read())]


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_pass, "ROWS_PER_BATCH", 3)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    sessions = {
        f"s{number}": asks(json.dumps({"a": number}), ask=f"q{number}") for number in range(10)
    }
    return omniagents_home(
        tmp_path / "home",
        sessions | {"empty": [], "cut": [user("a"), '{"role"']},
        verdicts=[("s1", "acceptable")],
    )


def test_the_table_holds_what_reading_gives(home, tmp_path, small_batches):
    found = made(home, tmp_path / "lake")
    read = list(read_sessions(open_source(home), KEY, RAW))
    assert sessions_in(tmp_path / "lake") == read
    rows = list(to_rows(Lake(str(tmp_path / "lake")).open("sessions", KEY).read()))
    assert [row["content_sha256"] for row in rows] == [session.hash_content() for session in read]
    assert found.counts["damage"] == {"invalid_item": 1, "trailing_user": 1}
    assert found.counts["tools"] == {"inferred": 12}
    assert found.counts["judgment"] == {"none": 11, "acceptable": 1}
    assert [row["session_id"] for row in found.first] == ["cut", "empty", "s0", "s1", "s2"]
    assert (
        pq.ParquetFile(Lake(str(tmp_path / "lake")).table("sessions", KEY).path).num_row_groups == 4
    )


def test_a_second_run_copies_what_did_not_change(home, tmp_path, small_batches):
    first = made(home, tmp_path / "lake")
    again = made(home, tmp_path / "lake")
    assert (first.copied, again.copied) == (0, 12)
    assert (again.table.sha256, again.counts, again.redacted, again.first) == (
        first.table.sha256,
        first.counts,
        first.redacted,
        first.first,
    )


def test_in_a_bucket_the_table_has_the_same_bytes_and_what_did_not_change_is_copied_and_not_searched_again(
    home, tmp_path, small_batches
):
    on_disk, bucket = made(home, tmp_path / "lake"), f"memory://{tmp_path.name}"
    found, scanned = [], []
    for _ in range(2):
        found.append(made(home, bucket))
        scanned.append(scan_new_sessions(Lake(bucket), KEY, RedactionOptions()).searched)
    assert [each.copied for each in found] == [0, 12] and scanned == [12, 0]
    assert {each.table.sha256 for each in found} == {on_disk.table.sha256}


def test_a_tool_that_only_the_last_session_calls_is_every_ones(home, tmp_path, small_batches):
    add_sessions(sessions_db(home), {"t": asks('{"b": true}', "only_here")})
    made(home, tmp_path / "lake")
    assert sessions_in(tmp_path / "lake") == list(read_sessions(open_source(home), KEY, RAW))
    assert {len(session.tools) for session in sessions_in(tmp_path / "lake")} == {2}


@pytest.mark.parametrize(
    "options",
    [
        ReadingOptions(system_prompt="be kind", redaction=RAW.redaction),
        ReadingOptions(task_pattern="s", redaction=RAW.redaction),
        ReadingOptions(repair=RAW.repair | {"trailing_user": "repair"}, redaction=RAW.redaction),
        ReadingOptions(),
    ],
)
def test_other_settings_make_all_anew(home, tmp_path, options):
    made(home, tmp_path / "lake")
    again = made(home, tmp_path / "lake", options)
    assert again.copied == 0
    assert made(home, tmp_path / "lake", options).copied == 12


def test_other_code_makes_all_anew(home, tmp_path, monkeypatch):
    made(home, tmp_path / "lake")
    monkeypatch.setattr(reading, "_hash_code", lambda: "other")
    assert made(home, tmp_path / "lake").copied == 0


@pytest.mark.parametrize("asset", ["sessions", SEEN_TABLE])
def test_a_last_table_that_is_damaged_or_another_is_not_copied_from(home, tmp_path, asset):
    first = made(home, tmp_path / "lake")
    path = Path(Lake(str(tmp_path / "lake")).table(asset, KEY).path)
    path.write_bytes(path.read_bytes()[:-10])
    again = made(home, tmp_path / "lake")
    assert (again.copied, again.table.sha256) == (0, first.table.sha256)


def test_a_run_whose_table_was_never_put_in_its_place_is_no_last_run(home, tmp_path):
    made(home, tmp_path / "lake")
    execute(
        sessions_db(home),
        "UPDATE history SET msg_json = replace(msg_json, 'done', 'gone') WHERE session_id = 's3'",
    )
    lost = ingest(open_source(home), KEY, RAW, Lake(str(tmp_path / "lake")))
    lost.table.file.unlink()
    again = made(home, tmp_path / "lake")
    assert (again.copied, again.table.sha256) == (0, lost.table.sha256)


@pytest.mark.parametrize(
    ("sessions", "verdicts", "refused"),
    [
        (12, 12, None),
        (6, 6, None),
        (5, 5, ("sessions", 12, 5)),
        (12, 5, ("verdicts", 12, 5)),
        (12, 0, ("verdicts", 12, 0)),
    ],
)
def test_a_store_that_lost_most_of_its_sessions_or_verdicts_replaces_nothing(
    tmp_path, sessions, verdicts, refused
):
    def store(name: str, count: int, judged: int) -> Path:
        histories = {f"s{number}": asks("{}", ask=f"q{number}") for number in range(count)}
        return omniagents_home(
            tmp_path / name,
            histories,
            verdicts=[(f"s{number}", "acceptable") for number in range(judged)],
        )

    lake = Lake(str(tmp_path / "lake"))
    made(store("before", 12, 12), tmp_path / "lake")
    source = open_source(store("after", sessions, verdicts))
    if refused is None:
        ingest(source, KEY, RAW, lake, 0.5)
        return
    with pytest.raises(VolumeError) as error:
        ingest(source, KEY, RAW, lake, 0.5)
    assert (error.value.what, error.value.before, error.value.now) == refused
    assert not list(Path(lake.table("sessions", KEY).parent.path).glob(".*")), (
        "nothing is left beside the table"
    )
    assert ingest(source, KEY, RAW, lake, 0).table.rows == sessions


def test_verdicts_that_are_gone_are_missed_where_every_session_still_has_a_metric(tmp_path):
    def store(name: str, **verdict: int) -> Path:
        (tmp_path / name).mkdir()
        path = tmp_path / name / "shop.jsonl"
        lines = [
            {"id": f"s{at}", "messages": HELLO, "scores": {"latency": at}} | verdict
            for at in range(12)
        ]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    lake, first, second = (
        Lake(str(tmp_path / "lake")),
        open_source(store("before", reward=1)),
        open_source(store("after")),
    )
    key = first.partitions()[0]
    ingest(first, key, RAW, lake).table.commit()
    with pytest.raises(VolumeError) as error:
        ingest(second, key, RAW, lake, 0.5)
    assert (error.value.what, error.value.before, error.value.now) == ("verdicts", 12, 0)


def test_what_was_redacted_is_counted_again_from_the_copies(tmp_path):
    home = omniagents_home(tmp_path / "home", {"a": asks('{"to": "ann@example.org"}'), "b": HELLO})
    first = made(home, tmp_path / "lake", ReadingOptions())
    again = made(home, tmp_path / "lake", ReadingOptions())
    assert again.copied == 2 and again.redacted == first.redacted and first.redacted.total() > 0
    assert "ann@example.org" not in repr(sessions_in(tmp_path / "lake"))


def test_a_source_without_rows_of_its_own_is_copied_from_too(tmp_path):
    home = omniagents_home(tmp_path / "home", {"a": asks("{}"), "b": HELLO})
    lines = [
        {"id": session.session_id, "messages": session.messages}
        for session in open_source(home).sessions(KEY)
    ]
    lines.append(
        {"id": "half", "messages": [user("\ud83d"), {"role": "assistant", "content": "x"}]}
    )
    path = tmp_path / "shop.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    key = open_source(path).partitions()[0]
    found = []
    for _ in range(2):
        found.append(ingest(open_source(path), key, RAW, Lake(str(tmp_path / "lake"))))
        found[-1].table.commit()
    assert [each.copied for each in found] == [0, 3]
    assert found[0].table.sha256 == found[1].table.sha256


ARGUMENTS = st.sampled_from(['{"a": 1}', '{"a": "x"}', '{"b": 1.5}', "{}", "[1]"])
STORES = st.dictionaries(
    st.sampled_from("abcdefgh"),
    st.one_of(st.just([]), st.just(HELLO), st.builds(asks, ARGUMENTS, st.sampled_from("fg"))),
)


@pytest.mark.slow
@given(STORES, STORES)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_copying_gives_the_bytes_of_a_table_that_is_made_anew(
    tmp_path_factory, small_batches, before, after
):
    folder = tmp_path_factory.mktemp("copying")
    made(omniagents_home(folder / "before", before), folder / "lake")
    (folder / "before").rename(folder / "gone")
    home = omniagents_home(folder / "before", after)
    copied, anew = made(home, folder / "lake"), made(home, folder / "other")
    assert copied.table.sha256 == anew.table.sha256
    assert (copied.counts, copied.first) == (anew.counts, anew.first)
    assert copied.copied == sum(before.get(name) == items for name, items in after.items())
    shutil.rmtree(folder)


def test_another_reader_or_another_version_of_it_makes_all_anew(home, tmp_path, monkeypatch):
    made(home, tmp_path / "lake")
    assert made(home, tmp_path / "lake").copied == 12
    monkeypatch.setattr(type(open_source(home)), "version", "2", raising=False)
    assert made(home, tmp_path / "lake").copied == 0


def test_a_search_for_private_data_looks_at_what_is_new_until_it_was_clean(home, tmp_path):
    options, path = RedactionOptions(), tmp_path / "lake"
    lake = Lake(str(path))
    made(home, path, ReadingOptions())
    scan = scan_new_sessions(lake, KEY, options)
    assert (scan.sessions, scan.searched) == (12, 12)
    scan = scan_new_sessions(lake, KEY, options)
    assert (scan.sessions, scan.searched) == (12, 0)
    add_sessions(
        sessions_db(home), {"new": [user("hello"), {"role": "assistant", "content": "done"}]}
    )
    assert made(home, path, ReadingOptions()).copied == 12
    scan = scan_new_sessions(lake, KEY, options)
    assert (scan.sessions, scan.searched) == (13, 1)
    allowed = ReadingOptions(redaction=RedactionOptions(allow=("ann@shop.io",)))
    add_sessions(
        sessions_db(home),
        {"private": [user("I am ann@shop.io"), {"role": "assistant", "content": "done"}]},
    )
    made(home, path, allowed)
    for _ in range(2):  # what is not clean is found again
        scan = scan_new_sessions(lake, KEY, options)
        assert (scan.kinds, scan.session_ids) == ({"EMAIL": 1}, ["private"])
    assert (scan.sessions, scan.searched) == (14, 1)


def test_the_search_for_private_data_looks_for_every_form_of_what_the_store_holds(
    home, tmp_path, monkeypatch
):
    """The detectors alone take a bare number for an id, so a form that redaction forgot passed the check."""
    options, path = RedactionOptions(), tmp_path / "lake"
    said = [
        user("My phone is (415) 555-2671"),
        {"role": "assistant", "content": "Ringing 4155552671 now."},
    ]
    add_sessions(
        sessions_db(home),
        {
            "caller": said,
            "other": [user("order 4155552671"), {"role": "assistant", "content": "done"}],
        },
    )
    with monkeypatch.context() as forgetful:
        forgetful.setattr(
            "agent_pipeline.redaction.search.Search._numbers", lambda self, text: iter(())
        )
        made(home, path, ReadingOptions())
    lake, source = Lake(str(path)), open_source(home)
    scan = scan_new_sessions(lake, KEY, options, source, ReadingOptions())
    assert (scan.kinds, scan.session_ids, scan.searched) == ({"PHONE": 1}, ["caller"], 14)
    assert scan_new_sessions(lake, KEY, options, source, ReadingOptions()).searched == 1
    made(
        home, path, ReadingOptions(redaction=RedactionOptions(phone_regions=("US", "DE")))
    )  # all sessions are read again
    assert not scan_new_sessions(lake, KEY, options, source, ReadingOptions()).kinds


TRIALS = ReadingOptions(task_pattern=r"^\w")
GIVEN_AWAY = {  # what says it, and gives it away: what other trials say of it, and what they say too that is something else
    "password: Tr0ub4dor&3": ("is it Tr0ub4dor&3?", "Tr0ub4dor", "Tr0ub5dor"),
    "my account is 12345678": ("12345678 is due", "12345678", "123456789"),
    "ask noah.brown7@example.com": ("Noah Brown is late", "Brown", "the brown lamp"),
    "kim.lee@example.com of Kim Lee": ("Hi Kim", "Kim", "Kimono"),
}


def trial(sentences: list[str]) -> list[dict[str, Any]]:
    return [
        user("Write a note"),
        {"role": "assistant", "content": "Go on."},
        user(". ".join(sentences)),
        {"role": "assistant", "content": "Yes."},
    ]


def trials(names: str) -> st.SearchStrategy[dict[str, list[str]]]:
    sentences = st.sampled_from(
        [each for giving, others in GIVEN_AWAY.items() for each in (giving, others[0], others[2])]
    )
    return st.dictionaries(
        st.sampled_from([f"{task}{trial}" for task in "ab" for trial in names]),
        st.lists(sentences, max_size=3),
    )


@pytest.mark.slow
@given(nights=st.lists(trials("123"), min_size=1, max_size=3))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_one_trial_calls_private_is_private_in_all_whichever_came_first(
    tmp_path_factory, small_batches, nights
):
    folder = tmp_path_factory.mktemp("trials")
    for store in nights:
        shutil.rmtree(folder / "home", ignore_errors=True)
        home = omniagents_home(
            folder / "home", {name: trial(sentences) for name, sentences in store.items()}
        )
        copied = made(home, folder / "lake", TRIALS)
    anew = made(home, folder / "other", TRIALS)
    assert (copied.table.sha256, copied.counts, copied.redacted) == (
        anew.table.sha256,
        anew.counts,
        anew.redacted,
    )
    rows = sessions_in(folder / "lake")
    assert rows == list(read_sessions(open_source(home), KEY, TRIALS))
    for row in rows:
        said = [
            each
            for name, sentences in store.items()
            if name[0] == row.session_id[0]
            for each in sentences
        ]
        for giving, (other, private, unlike) in GIVEN_AWAY.items():
            text = repr(row.messages)
            assert not (giving in said and private in text.replace(unlike, ""))
            assert giving in said or (other in text) == (other in store[row.session_id])
            assert (unlike in text) == (unlike in store[row.session_id])
    shutil.rmtree(folder)


def test_trials_that_only_begin_alike_share_what_can_mean_nothing_else(tmp_path):
    giving = ["kim.lee@example.com of Kim Lee", "password: Tr0ub4dor&3", "one-time code: 482913"]
    home = omniagents_home(
        tmp_path / "home",
        {"a": trial(giving), "b": trial(["Kim Lee", "Tr0ub4dor&3", "482913"]), "c": trial(["Kim"])},
    )
    made(home, tmp_path / "lake", ReadingOptions())
    _, b, c = (row.messages[2]["content"] for row in sessions_in(tmp_path / "lake"))
    assert (b, c) == ("<NAME_1> <NAME_2>. <PASSWORD_1>. 482913", "Kim")


def test_what_a_forgotten_session_called_private_stays_private_in_the_other_trials(tmp_path):
    home = omniagents_home(
        tmp_path / "home",
        {"a1": trial(["password: Tr0ub4dor&3"]), "a2": trial(["is it Tr0ub4dor&3?"])},
    )
    BlockList.add(Lake(str(tmp_path / "lake")), ["a1"], KEY)
    for _ in range(2):
        made(home, tmp_path / "lake", TRIALS)
        (row,) = sessions_in(tmp_path / "lake")
        assert row.messages[2]["content"] == "is it <PASSWORD_1>?"


@pytest.mark.parametrize("first", ["a1", "a2", "a3"])
def test_what_the_last_night_gave_away_is_in_no_table_of_all_nights_and_in_nothing_noted_of_them(
    tmp_path, small_batches, first
):
    answer = trial([said for said, *_ in GIVEN_AWAY.values()])
    store = {"a1": trial(list(GIVEN_AWAY)), "a2": answer, "a3": answer} | {
        f"b{number}": HELLO for number in range(5)
    }
    before = omniagents_home(
        tmp_path / "before", {name: items for name, items in store.items() if name != first}
    )
    made(before, tmp_path / "lake", TRIALS)
    before.rename(tmp_path / "gone")
    after = omniagents_home(tmp_path / "before", store)
    found, anew = made(after, tmp_path / "lake", TRIALS), made(after, tmp_path / "other", TRIALS)
    assert (found.table.sha256, found.copied) == (anew.table.sha256, 5)
    for asset in ("sessions", SEEN_TABLE):
        written = repr(Lake(str(tmp_path / "lake")).open(asset, KEY).read().to_pylist())
        assert not [private for _, private, _ in GIVEN_AWAY.values() if private in written]
    assert {row.messages[2]["content"] for row in sessions_in(tmp_path / "lake")[1:3]} == {
        "is it <PASSWORD_1>?. <ACCOUNT_1> is due. <NAME_1> <NAME_2> is late. Hi <NAME_3>"
    }


def test_sessions_are_read_anew_and_again_without_pandas(tmp_path):
    home = omniagents_home(
        tmp_path / "home",
        {"a1": trial(["password: Tr0ub4dor&3"]), "a2": trial(["is it Tr0ub4dor&3?"]), "b": HELLO},
    )
    program = f"""
import sys
from pathlib import Path
from agent_pipeline.ingestion.ingestion import ingest
from agent_pipeline.ingestion.reading import ReadingOptions
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sources import open_source
from agent_pipeline.storage.lake import Lake
store, key, lake = open_source(Path({str(home)!r})), PartitionKey("shop", "support"), Lake({str(tmp_path / "lake")!r})
for copied in (0, 3):
    found = ingest(store, key, ReadingOptions(task_pattern="^."), lake, 0.5)
    found.table.commit()
    assert found.copied == copied and "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
