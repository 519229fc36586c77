"""Plain conversation files, and what all readers of files share."""

import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.errors import StoreError
from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.judging import VerdictPolicy
from agent_pipeline.keys import parse_key
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.sessions.session import Session
from agent_pipeline.sessions.tables import SESSIONS, make_session_row, to_table
from agent_pipeline.sources import SOURCES, open_source
from agent_pipeline.sources.formats.fields import (
    counts,
    function_tools,
    parsed,
    scalar,
    verdict,
    when,
)
from agent_pipeline.sources.formats.file_source import FileSource, usable_key
from agent_pipeline.sources.formats.plain import OpenAIChatSource, ResponsesSource, ShareGPTSource
from agent_pipeline_tests.judging.sessions import judge
from agent_pipeline_tests.sources.samples import (
    CHAT,
    SAMPLES,
    TOOL,
    chat_row,
    document,
    history_row,
    lines,
    put,
    sharegpt_row,
    table,
)


def read(source: FileSource) -> list[Session]:
    """All sessions of a store, partition by partition."""
    return [session for key in source.partitions() for session in source.sessions(key)]


def opened(reader: type[FileSource], tmp_path: Path, **named: bytes) -> FileSource:
    """A reader on files whose names have __ for the dot."""
    return reader(put(tmp_path, {name.replace("__", "."): raw for name, raw in named.items()}))


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_detected_by_what_is_in_it_and_by_its_own_reader_first(
    name: str, tmp_path: Path
) -> None:
    reader, stored = SAMPLES[name]
    path = put(tmp_path, {file if "/" in file else "data.bin": raw for file, raw in stored.items()})
    assert next(source for source in SOURCES if source.detect(path)) is reader
    assert read(reader(path))


@pytest.mark.parametrize("name", SAMPLES)
def test_ids_are_unique_and_in_order_and_a_second_pass_gives_the_same(
    name: str, tmp_path: Path
) -> None:
    reader, stored = SAMPLES[name]
    source = reader(put(tmp_path, stored))
    for key in source.partitions():
        assert parse_key(str(key)) == key
        ids = [session.session_id for session in source.sessions(key)]
        assert ids == sorted(set(ids)) == [session.session_id for session in source.sessions(key)]


def test_a_chat_line_says_everything_by_its_usual_names(tmp_path: Path) -> None:
    more = {
        "model": "m1",
        "task_id": 7.0,
        "trial": 2,
        "created_at": 1767323045,
        "error": None,
        "scores": {"a": 0.5, "b": 1, "c": "x"},
    }
    usage = {
        "prompt_tokens": 3,
        "prompt_tokens_details": {"cached_tokens": 2},
        "note": "x",
        "ok": True,
    }
    row = chat_row(
        **more,
        usage=usage,
        cost_usd=0.25,
        shed="red",
        parent_session_id="s0",
        attack_succeeded=True,
    )
    (session,) = read(opened(OpenAIChatSource, tmp_path, chat__jsonl=lines(row)))
    assert session.score is None, "metrics without a direction are no verdict"
    assert (session.project, session.agent, session.session_id, session.source) == (
        "garden",
        "keeper",
        "s1",
        "openai_chat",
    )
    assert session.messages == CHAT
    assert session.tools == [TOOL] and session.tools_origin == "source"
    assert (session.judgment, session.model_id, session.task_id, session.trial) == (
        "acceptable",
        "m1",
        "7",
        "2",
    )
    assert (
        session.created_at is not None
        and session.created_at.isoformat() == "2026-01-02T03:04:05+00:00"
    )
    assert session.scores == {"a": 0.5, "b": 1.0}
    assert session.usage == {"prompt_tokens": 3, "prompt_tokens_details.cached_tokens": 2}
    assert (session.cost_usd, session.parent_session_id, session.attack_succeeded) == (
        0.25,
        "s0",
        True,
    )
    assert session.context == {"shed": "red"}


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("a.jsonl", lines(chat_row(), chat_row(session_id="s2"))),
        ("a.json", json.dumps([chat_row(), chat_row(session_id="s2")]).encode()),
        ("b.json", document([chat_row(), chat_row(session_id="s2")])),
        ("bom.jsonl", b"\xef\xbb\xbf" + lines(chat_row(), chat_row(session_id="s2"))),
        (
            "a.parquet",
            table(
                [
                    chat_row(messages=json.dumps(CHAT)),
                    chat_row(messages=json.dumps(CHAT), session_id="s2"),
                ]
            ),
        ),
        (
            "a.arrow",
            table(
                [
                    chat_row(messages=json.dumps(CHAT)),
                    chat_row(messages=json.dumps(CHAT), session_id="s2"),
                ],
                arrow=True,
            ),
        ),
    ],
)
def test_lines_lists_parquet_and_arrow_give_the_same_sessions(
    name: str, raw: bytes, tmp_path: Path
) -> None:
    sessions = read(OpenAIChatSource(put(tmp_path, {name: raw})))
    assert [(session.session_id, session.messages, session.tools) for session in sessions] == [
        ("s1", CHAT, [TOOL]),
        ("s2", CHAT, [TOOL]),
    ]


def test_nested_columns_of_a_table_are_a_conversation_without_the_fields_that_are_null(
    tmp_path: Path,
) -> None:
    (session,) = read(opened(OpenAIChatSource, tmp_path, chat__parquet=table([chat_row()])))
    assert session.messages == CHAT


def test_a_column_of_any_type_and_our_own_table_are_read(tmp_path: Path) -> None:
    stranger = {
        "messages": CHAT,
        "created_at": datetime(2026, 1, 2, tzinfo=UTC),
        "day": date(2026, 1, 2),
        "price": Decimal("1.50"),
        "raw": b"\xff",
    }
    rows = pa.Table.from_pylist([stranger | {"task_id": 3.0, "took": timedelta(seconds=1)}])
    times = rows.set_column(1, "created_at", rows["created_at"].cast(pa.timestamp("ns", "UTC")))
    pq.write_table(times, tmp_path / "strange.parquet")
    (session,) = read(OpenAIChatSource(tmp_path / "strange.parquet"))
    assert (session.created_at, session.task_id, session.context["price"]) == (
        stranger["created_at"],
        "3",
        "1.50",
    )
    pq.write_table(to_table([make_session_row(session)], SESSIONS), tmp_path / "ours.parquet")
    (again,) = read(OpenAIChatSource(tmp_path / "ours.parquet"))
    assert again.hash_content() == session.hash_content() and again.context == session.context


@pytest.mark.parametrize(("score", "verdict"), [(1, "unacceptable"), (3, None), (5, "acceptable")])
def test_a_number_called_score_is_judged_on_the_scale_that_the_settings_say(
    tmp_path: Path, score: int, verdict: str | None
) -> None:
    (session,) = read(
        opened(OpenAIChatSource, tmp_path, chat__jsonl=lines(chat_row(judgment=None, score=score)))
    )
    assert (session.judgment, session.score) == (None, score)
    assert (
        judge(session, [], VerdictPolicy(score_acceptable=4, score_unacceptable=2)).verdict
        == verdict
    )


def test_responses_items_keep_their_order_and_their_reasoning_apart(tmp_path: Path) -> None:
    (session,) = read(opened(ResponsesSource, tmp_path, history__jsonl=lines(history_row())))
    assert [message["role"] for message in session.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
    ]
    assert session.messages[3]["tool_calls"][0]["function"] == {
        "name": "note",
        "arguments": '{"input": "found it"}',
    }
    assert session.reasoning == [{"message": 1, "text": "Look in the shed."}]
    assert session.usage == {"input_tokens": 12, "output_tokens": 3}


def test_sharegpt_turns_have_their_calls_and_observations(tmp_path: Path) -> None:
    (session,) = read(opened(ShareGPTSource, tmp_path, sharegpt__jsonl=lines(sharegpt_row())))
    assert [message["role"] for message in session.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert json.loads(session.messages[2]["tool_calls"][0]["function"]["arguments"]) == {
        "what": "shed"
    }
    assert session.tools == [TOOL]
    assert (session.judgment, session.score) == ("acceptable", 1.0)


def test_an_empty_conversation_is_a_session_and_a_line_that_is_none_is_counted(
    tmp_path: Path,
) -> None:
    raw = (
        lines(chat_row(), chat_row(session_id="s2", messages=[]), {"messages": None}, 5)
        + b'{"messages": [{"role": "us'
    )
    source = opened(OpenAIChatSource, tmp_path, chat__jsonl=raw)
    assert [(session.session_id, len(session.messages)) for session in read(source)] == [
        ("s1", 5),
        ("s2", 0),
    ]
    assert [note.partition(": ")[2] for note in source.notes] == [
        "1 lines do not contain a JSON object and were left out (the first is line 4).",
        "1 records are not JSON and were left out.",
        "1 records are not what openai_chat writes (JSON lines with messages, a list with role and content) and were left out.",
    ]


def test_sessions_of_one_id_are_told_apart_and_that_is_noted(tmp_path: Path) -> None:
    source = opened(
        OpenAIChatSource,
        tmp_path,
        chat__jsonl=lines(*[chat_row() for _ in range(3)], chat_row(session_id="s1~2")),
    )
    assert [session.session_id for session in read(source)] == ["s1", "s1~2", "s1~2~2", "s1~3"]
    assert "3 sessions have the same id as another session" in source.notes[0]


def test_many_sessions_of_one_id_do_not_take_for_ever(tmp_path: Path) -> None:
    source = opened(
        OpenAIChatSource, tmp_path, chat__jsonl=lines(*[{"id": "x", "messages": CHAT[:1]}] * 20_000)
    )
    (key,) = source.partitions()
    assert sum(1 for _ in source.sessions(key)) == 20_000


def test_a_line_without_an_id_is_named_by_its_place(tmp_path: Path) -> None:
    source = opened(
        OpenAIChatSource, tmp_path, chat__jsonl=lines({"messages": CHAT}, {"messages": CHAT})
    )
    first, second = (session.session_id for session in read(source))
    assert first == "chat:000000000000:0" and second > first


def test_half_emoji_nan_and_control_characters_are_let_in(tmp_path: Path) -> None:
    raw = b'{"messages": [{"role": "user", "content": "a\x00b \\ud83d"}], "x": NaN, "y": 1e999, "z\\ud83d": "\xff"}\n'
    (session,) = read(opened(OpenAIChatSource, tmp_path, chat__jsonl=raw))
    assert session.messages[0]["content"].startswith("a\0b ")
    json.dumps(session.context, ensure_ascii=False).encode("utf-8")
    assert session.damage["invalid_unicode"] >= 2


def test_a_record_whose_text_is_no_json_behind_its_outline_is_counted_not_lost_silently(
    tmp_path: Path,
) -> None:
    raw = lines(chat_row()) + b'{"session_id": "s9", "messages": [], "n": ' + b"1" * 5000 + b"}\n"
    source = opened(OpenAIChatSource, tmp_path, chat__jsonl=raw)
    assert [session.session_id for session in read(source)] == ["s1"]
    assert source.notes == [f"{source.path}: 1 records are not JSON and were left out."]


def test_what_is_nested_too_deeply_is_one_damaged_session_not_a_crash(tmp_path: Path) -> None:
    deep = (
        b'{"messages": [{"role": "user", "content": "hi"}], "x": '
        + b"[" * 500
        + b"]" * 500
        + b"}\n"
    )
    (session,) = read(opened(OpenAIChatSource, tmp_path, chat__jsonl=deep))
    assert session.damage == {"invalid_context": 1} and session.messages


def test_a_document_that_is_cut_off_gives_its_whole_records_and_a_note(tmp_path: Path) -> None:
    raw = document([chat_row(), chat_row(session_id="s2"), chat_row(session_id="s3")])
    source = opened(OpenAIChatSource, tmp_path, chat__json=raw[:-200])
    assert [session.session_id for session in read(source)] == ["s1", "s2"]
    assert (
        "is cut off or damaged" in source.notes[0]
        and "the first 2 records were read" in source.notes[0]
    )


def test_a_broken_file_does_not_hide_the_others_of_its_folder(tmp_path: Path) -> None:
    broken = table([chat_row(messages=json.dumps(CHAT))])[:-50]
    source = opened(
        OpenAIChatSource,
        tmp_path,
        good__jsonl=lines(chat_row()),
        bad__parquet=broken,
        readme__md=b"# hello",
    )
    assert len(read(source)) == 1
    assert "bad.parquet" in source.notes[0]
    assert source.notes[1:] == [
        f"1 files under {source.path} contain no records of openai_chat and were left out (readme.md)."
    ]


def test_a_file_that_shrinks_while_it_is_read_is_a_failure(tmp_path: Path) -> None:
    source = opened(
        OpenAIChatSource,
        tmp_path,
        chat__jsonl=lines(chat_row(), chat_row(session_id="s2", x="x" * 300_000)),
    )
    (key,) = source.partitions()
    stream = source.sessions(key)
    next(stream)
    source.path.write_bytes(b"{}\n")
    with pytest.raises(StoreError, match="changed"):
        list(stream)


def chats(*names: str, form: str = "jsonl") -> bytes:
    """Sessions whose records are of one length, and each of which says its own name."""
    rows = [
        chat_row(
            session_id=name,
            messages=[{"role": "user", "content": name}, {"role": "assistant", "content": "Yes."}],
        )
        for name in names
    ]
    return lines(*rows) if form == "jsonl" else json.dumps(rows).encode()


@pytest.mark.parametrize("form", ["jsonl", "json"])
def test_a_file_that_another_is_renamed_over_while_it_is_read_mixes_no_sessions(
    form: str, tmp_path: Path
) -> None:
    source = opened(
        OpenAIChatSource,
        tmp_path,
        **{"a__jsonl": chats("s1"), f"b__{form}": chats("s2", "s3", form=form)},
    )
    (key,) = source.partitions()
    stream = source.sessions(key)
    assert next(stream).session_id == "s1"
    (tmp_path / "new").write_bytes(chats("s3", "s2", form=form))
    (tmp_path / "new").replace(source.path / f"b.{form}")
    with pytest.raises(StoreError, match="changed"):
        list(stream)
    assert {each.session_id: each.messages[0]["content"] for each in read(source)} == {
        name: name for name in ("s1", "s2", "s3")
    }


def test_a_file_that_grows_while_it_is_read_is_read_as_far_as_it_was_and_then_to_its_end(
    tmp_path: Path,
) -> None:
    source = opened(OpenAIChatSource, tmp_path, chat__jsonl=chats("s1", "s2"))
    (key,) = source.partitions()
    stream, new = source.sessions(key), chats("s3")
    first = [next(stream).session_id]
    with source.path.open("ab", buffering=0) as file:
        file.write(new[:-9])
        assert first + [each.session_id for each in stream] == ["s1", "s2"]
        assert [each.session_id for each in read(source)] == [
            "s1",
            "s2",
        ] and "1 records are not JSON" in source.notes[-1]
        file.write(new[-9:])
    assert [each.session_id for each in read(source)] == ["s1", "s2", "s3"]


def test_a_changed_file_is_indexed_again(tmp_path: Path) -> None:
    source = opened(OpenAIChatSource, tmp_path, chat__jsonl=lines(chat_row()))
    assert len(read(source)) == 1
    source.path.write_bytes(lines(chat_row(), chat_row(session_id="s2")))
    assert len(read(source)) == 2


@pytest.mark.parametrize("gap", ["\n", "", "\n\n"])
def test_values_written_one_after_another_are_a_sound_file(gap: str, tmp_path: Path) -> None:
    """The console exporters of the tracing SDKs write indented objects like that."""
    raw = gap.join(
        json.dumps(chat_row(session_id=f"s{number}"), indent=4) for number in range(3)
    ).encode()
    source = opened(OpenAIChatSource, tmp_path, spans__json=raw)
    assert [session.session_id for session in read(source)] == [
        "s0",
        "s1",
        "s2",
    ] and not source.notes


@pytest.mark.parametrize(
    ("raw", "held"),
    [
        (lines({"traj_": [], "rewards": 1}), "it has records with the fields traj_, rewards"),
        (b"# words", "it is not a JSON, Parquet or Arrow file, and not a zip of JSON files or"),
        (b"[]", "it contains no records"),
    ],
)
def test_a_file_that_no_reader_knows_is_described(raw: bytes, held: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=held):
        open_source(put(tmp_path, {"a": raw}))


@pytest.mark.parametrize(("raw", "why"), [(b'{"a": ', "JSON"), (b"PAR1xxxx", "Parquet")])
def test_a_damaged_file_that_no_reader_knows_says_what_is_wrong_with_it(
    raw: bytes, why: str, tmp_path: Path
) -> None:
    with pytest.raises(StoreError, match=why):
        open_source(put(tmp_path, {"a": raw}))


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_two_names_make_a_partition_key(project: str, agent: str) -> None:
    key = usable_key(project, agent)
    assert parse_key(str(key)) == key


@given(
    st.lists(
        st.sampled_from(["../../etc", "x" * 400, "y" * 400, "..", "ключ", "слово", ""]),
        min_size=2,
        max_size=2,
        unique=True,
    )
)
def test_names_that_are_cut_or_have_no_letters_stay_apart(names: list[str]) -> None:
    assert usable_key("p", names[0]) != usable_key("p", names[1])


def test_verdicts_numbers_times_and_counts_are_read_as_people_write_them() -> None:
    good, bad = "acceptable", "unacceptable"
    verdicts = {
        True: good,
        0: bad,
        "Pass": good,
        "I": bad,
        "incorrect": bad,
        0.5: None,
        "maybe": None,
        None: None,
        math.nan: None,
    }
    assert {value: verdict(value)[1] for value in verdicts} == verdicts
    assert [scalar(value) for value in (3, 3.0, "3")] == ["3"] * 3
    assert [scalar(value) for value in (True, 3.5, None, math.inf, 10**400)] == [None] * 5
    same = [
        when(value)
        for value in (
            1767323045,
            1767323045000,
            "1767323045000000000",
            "2026-01-02T04:04:05+01:00",
            "2026-01-02 03:04:05",
        )
    ]
    assert set(same) == {datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)} and when(0) == datetime(
        1970, 1, 1, tzinfo=UTC
    )
    assert [when(value) for value in (True, "soon", math.nan, 10**400, 1e300, [], b"x", None)] == [
        None
    ] * 8
    assert counts([{"a": 1, "b": {"c": 2}}, {"a": 2.0, "d": math.nan}, None]) == {"a": 3, "b.c": 2}
    assert (
        function_tools([TOOL, {"name": "bare", "input_schema": {"type": "object"}}, {"x": 1}])[1]
        == 1
    )


def test_agents_with_similar_names_are_partitions_of_their_own(tmp_path: Path) -> None:
    """Süd and Sød had one key, as had "Foo Bar" and "foo-bar": one model was trained on two agents (bbvch-ai/aihub-core#866)."""
    names = [
        "Süd",
        "Sød",
        "Foo Bar",
        "foo-bar",
        "FOO-BAR",
        "客服",
        "v1...2",
        "v1-.2",
        "Smith, Jones",
        "ok",
        "007",
        "7",
        "null",
    ]
    chats = [
        {"session_id": name, "project": name, "agent": "a", "messages": CHAT} for name in names
    ]
    source = open_source(put(tmp_path, {"names.jsonl": lines(*chats)}))
    keys = source.partitions()
    sessions = {key: [session.session_id for session in source.sessions(key)] for key in keys}
    assert sorted(sessions.values()) == sorted([name] for name in names)
    assert {("foo-bar", "a"), ("ok", "a"), ("007", "a"), ("7", "a"), ("null", "a")} <= set(keys)
    assert any("'Süd'" in note for note in source.notes)
    few = open_source(put(tmp_path / "few", {"names.jsonl": lines(*reversed(chats[:3]))}))
    assert set(few.partitions()) <= set(keys), "a key depends on the name alone"


def test_sharegpt_calls_as_turns_one_after_another(tmp_path: Path) -> None:
    """hiyouga/LlamaFactory#9585: parallel calls are one message, and their results answer them in order."""
    asked = [{"from": "human", "value": "How old are Ann and Ben?"}]
    calls = [
        {"from": "function_call", "value": json.dumps({"name": "age", "arguments": {"of": of}})}
        for of in ("Ann", "Ben")
    ]
    results = [{"from": "observation", "value": text} for text in ("36", "34")]
    for turns in (
        [*calls, *results],
        [
            {"from": "function_call", "value": f"[{calls[0]['value']}, {calls[1]['value']}]"},
            *results,
        ],
    ):
        row = sharegpt_row(conversations=[*asked, *turns, {"from": "gpt", "value": "36 and 34."}])
        (session,) = repaired_sessions(opened(ShareGPTSource, tmp_path, sharegpt__jsonl=lines(row)))
        _, _, called, *told, _ = session.messages
        assert [
            json.loads(call["function"]["arguments"])["of"] for call in called["tool_calls"]
        ] == ["Ann", "Ben"]
        assert [(each["tool_call_id"], each["content"]) for each in told] == [
            (call["id"], text)
            for call, text in zip(called["tool_calls"], ("36", "34"), strict=True)
        ]


@pytest.mark.parametrize("teller", ["tool", "human", "observation"])
def test_sharegpt_calls_in_the_words_of_hermes(teller: str, tmp_path: Path) -> None:
    """The set of NousResearch for function calling has calls and results as words: they are calls and results, whoever says them."""
    turns = [
        {"from": "human", "value": "How old is Ann?"},
        {
            "from": "gpt",
            "value": '<tool_call>\n{"name": "age", "arguments": {"of": "Ann"}}\n</tool_call>',
        },
        {"from": teller, "value": "<tool_response>\n36\n</tool_response>"},
        {"from": "gpt", "value": "36."},
    ]
    (session,) = repaired_sessions(
        opened(ShareGPTSource, tmp_path, sharegpt__jsonl=lines(sharegpt_row(conversations=turns)))
    )
    assert [each["role"] for each in session.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert session.messages[2]["tool_calls"][0]["function"] == {
        "name": "age",
        "arguments": '{"of": "Ann"}',
    }
    assert (session.messages[3]["content"], session.broken) == ("36", None)


def repaired_sessions(source: FileSource) -> list[Session]:
    options = ReadingOptions(redaction=RedactionOptions(enabled=False))
    return [
        session for key in source.partitions() for session in read_sessions(source, key, options)
    ]


@pytest.mark.parametrize(
    "note",
    [
        "redacted-by-litellm",
        "Begin ... (litellm_truncated skipped 5230 chars. Full) ... end.",
        "__REDACTED__",
    ],
)
def test_notes_of_exporters_in_plain_files(note: str, tmp_path: Path) -> None:
    """Logs of a gateway go on as plain files, and so do its notes (BerriAI/litellm#14637)."""
    for at in (0, 1, 4):
        messages = [
            message | ({"content": note} if place == at else {})
            for place, message in enumerate(CHAT)
        ]
        (session,) = repaired_sessions(
            opened(OpenAIChatSource, tmp_path, chat__jsonl=lines(chat_row(messages=messages)))
        )
        assert session.broken == "cut_text"


@pytest.mark.parametrize(
    "row",
    [
        {
            "messages": [
                {"role": "user", "content": "<image>Total?"},
                {"role": "assistant", "content": "48.20"},
            ],
            "images": ["a.png"],
        },
        {
            "conversations": [
                {"from": "human", "value": "<image>Total?"},
                {"from": "gpt", "value": "48.20"},
            ],
            "image": "a.png",
        },
        {
            "prompt": [{"role": "user", "content": "Total?"}],
            "completion": [{"role": "assistant", "content": "48.20"}],
            "images": [{"path": "a"}],
        },
        {
            "messages": [
                {"role": "user", "content": "Total?", "file_ids": ["f"]},
                {"role": "assistant", "content": "48.20"},
            ]
        },
    ],
)
def test_pictures_in_a_column_of_their_own_are_missing(tmp_path: Path, row: dict) -> None:
    (session,) = read(open_source(put(tmp_path / "with", {"rows.jsonl": lines(row)})))
    assert session.damage == {"missing_media": 1}
    if name := {"image", "images"} & row.keys():
        (session,) = read(
            open_source(put(tmp_path / "without", {"rows.jsonl": lines(row | {name.pop(): []})}))
        )
        assert not session.damage


@pytest.mark.parametrize(
    "twice",
    [
        b'{"messages": [{"role": "user", "content": "a", "content": "b"}, {"role": "assistant", "content": "17"}]}',
        b'{"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"id": 1, "id": 2}}]}]}',
        b'{"messages": [{"role": "user", "content": "a"}], "x": {"y" : NaN, "y" : 2}}',
    ],
)
def test_a_record_with_a_key_twice_is_left_out_with_a_note(tmp_path: Path, twice: bytes) -> None:
    """Readers of JSON keep one of the two values in silence, and the row would say that it was meant."""
    source = OpenAIChatSource(put(tmp_path, {"rows.jsonl": twice + b"\n" + lines(chat_row())}))
    assert [session.session_id for session in read(source)] == [chat_row()["session_id"]]
    assert any("twice" in note for note in source.notes)


@given(
    st.recursive(
        st.none() | st.text() | st.floats(allow_nan=False),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_without_a_repeated_key_is_read_as_it_is(value: object) -> None:
    for text in (
        json.dumps(value),
        json.dumps(value, ensure_ascii=False),
        json.dumps(value, separators=(" , ", " :")),
    ):
        assert parsed(text.encode("utf-8", "surrogateescape")) == value
