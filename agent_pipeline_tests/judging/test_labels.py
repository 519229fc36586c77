"""People's judgments from files."""

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent_pipeline.errors import SettingsError
from agent_pipeline.ingestion.volume import VolumeError
from agent_pipeline.judging import Label, Labels, read_labels
from agent_pipeline.judging.judging_run import JudgingRun
from agent_pipeline.judging.llm_client import SpendLimits
from agent_pipeline.judging.llm_judge import LlmJudge
from agent_pipeline.judging.options import JudgingOptions
from agent_pipeline.judging.tables import judge_partition
from agent_pipeline.judging.verdict_policy import VerdictPolicy
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline.sessions.tables import SESSIONS, make_session_row, to_batches
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.judging.sessions import session

KEY = PartitionKey("shop", "support")
HEADER = "session_id,judgment,reason\n"


def written(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return path


def read(path: Path, text: str | bytes) -> dict[str, Label]:
    return read_labels(written(path, text), KEY).by_id


@pytest.mark.parametrize(
    "text",
    [
        "session_id,judgment,reason\ns1,acceptable,fine\n",
        "\n Session_ID ;Judgment;reason;more\r\n\r\ns1; Acceptable ;fine;x\r\n",
        "reason\tjudgment\tsession_id\nfine\tACCEPTABLE\ts1\n",
        b"\xef\xbb\xbfsession_id,judgment,reason\ns1,acceptable,fine",
        "session_id,judgment,reason\ns1,acceptable,fine\n".encode("utf-16"),
    ],
)
def test_a_spreadsheets_file_is_read_whatever_its_separator_mark_and_case(tmp_path, text):
    assert read(tmp_path / "a.csv", text) == {"s1": Label("acceptable", "fine")}


def test_json_lines_are_labels_too(tmp_path):
    rows = [
        {"session_id": 7, "judgment": "acceptable", "reason": None},
        {"session_id": "s1", "judgment": "unacceptable", "reason": "half \ud83d"},
    ]
    found = read(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    assert found["7"] == Label("acceptable", "") and found["s1"].judgment == "unacceptable"
    assert found["s1"].reason.encode("utf-8")


def test_the_last_judgment_of_a_session_counts_and_an_empty_one_takes_nothing_back(tmp_path):
    assert read(
        tmp_path / "a.csv", HEADER + "s1,acceptable,\ns1,unacceptable,b\ns1,,\ns2,,no\n"
    ) == {"s1": Label("unacceptable", "b")}


def test_the_files_of_a_folder_are_read_by_name_and_others_passed_over(tmp_path):
    written(tmp_path / "2.csv", HEADER + "s1,unacceptable,\n")
    written(
        tmp_path / "1.jsonl",
        '{"session_id": "s1", "judgment": "acceptable"}\n{"session_id": "s2", "judgment": "acceptable"}\n',
    )
    written(tmp_path / "notes.txt", "hello")
    written(tmp_path / ".hidden.csv", "hello")
    found = read_labels(tmp_path, KEY).by_id
    assert {name: label.judgment for name, label in found.items()} == {
        "s1": "unacceptable",
        "s2": "acceptable",
    }


def test_a_row_that_names_another_agent_is_not_this_ones(tmp_path):
    agents = ["Shop,Support", "shop,intern", ",support", "office,", "..,", ","]
    rows = "".join(f"s{number},acceptable,{agent}\n" for number, agent in enumerate(agents, 1))
    assert set(read(tmp_path / "a.csv", "session_id,judgment,project,agent\n" + rows)) == {
        "s1",
        "s3",
        "s6",
    }


def test_what_is_no_judgment_and_what_is_no_row_is_counted_in_a_sentence(tmp_path):
    labels = read_labels(
        written(
            tmp_path / "a.csv",
            HEADER + "s1,maybe,\ns2,good,\ns3,maybe,\n,acceptable,\ns4,acceptable\n",
        ),
        KEY,
    )
    assert set(labels.by_id) == {"s4"}
    assert [note.partition(": ")[2] for note in labels.notes] == [
        "1 rows are not JSON or have no session_id, and were left out.",
        "3 judgments are neither acceptable nor unacceptable ('good', 'maybe') and were left out.",
    ]


def test_a_line_that_is_no_json_is_counted_and_the_others_are_read(tmp_path):
    labels = read_labels(
        written(
            tmp_path / "a.jsonl",
            '{"session_id": "s1", "judgment": "acceptable"}\n[1]\n{"session_id": "s2", "jud',
        ),
        KEY,
    )
    assert (
        set(labels.by_id) == {"s1"}
        and "2 rows are not JSON or have no session_id" in labels.notes[0]
    )


def test_labels_of_sessions_that_there_are_not_are_counted_and_named(tmp_path):
    labels = read_labels(
        written(
            tmp_path / "a.csv", HEADER + "".join(f"s{number},acceptable,\n" for number in range(8))
        ),
        KEY,
    )
    assert labels.describe_unknown([]) == ""
    list(JudgingRun([], VerdictPolicy(), labels).judge([(None, session(session_id="s0"))]))
    assert (
        "7 labels are for sessions that this agent does not have ('s1', 's2', 's3', 's4', 's5', …)"
        in labels.notes[-1]
    )


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("missing.csv", None, "does not exist"),
        ("labels.xlsx", b"PK", "neither a .csv nor a .jsonl"),
        ("labels.csv", b"", "no judgment and no session_id"),
        ("labels.csv", b"id,judgment\n1,acceptable\n", "no session_id"),
        ("labels.csv", b"\xff\xfe\x00\xd8", "cannot be read"),
        ("labels.csv", b"session_id,judgment\n\xe9,acceptable\n", "save the file as UTF-8"),
        ("labels.csv", b'session_id,judgment\n"s1,acceptable\n', "not valid CSV from line 2 on"),
        ("labels.jsonl", b'{"judgment": "acceptable"}\n', "no session_id"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(tmp_path, name, content, says):
    if content is not None:
        written(tmp_path / name, content)
    with pytest.raises(SettingsError, match=says) as error:
        read_labels(tmp_path / name, KEY)
    assert "\n" not in str(error.value)


def test_reasons_are_redacted_as_conversations_are(tmp_path):
    labels = read_labels(
        written(
            tmp_path / "a.csv",
            HEADER + "s1,acceptable,mail jane.roe@corp.example.org\ns2,unacceptable,rude\n",
        ),
        KEY,
    )
    labels.redact(Redactor(RedactionOptions()))
    assert labels.by_id == {
        "s1": Label("acceptable", "mail <EMAIL_1>"),
        "s2": Label("unacceptable", "rude"),
    }


def test_only_labels_of_the_sessions_at_hand_make_a_new_version(tmp_path):
    labels = read_labels(written(tmp_path / "a.csv", HEADER + "s1,acceptable,\n"), KEY)
    changed = read_labels(written(tmp_path / "a.csv", HEADER + "s1,acceptable,why\n"), KEY)
    assert labels.add_to_version("v", ["s2"]) == "v"
    assert len({"v", labels.add_to_version("v", ["s1"]), changed.add_to_version("v", ["s1"])}) == 3
    assert labels.add_to_version("v", ["s1", "s2"]) == labels.add_to_version("v", ["s2", "s1"])


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(
    st.dictionaries(
        texts.map(str.strip).filter(bool),
        st.tuples(st.sampled_from(["acceptable", "unacceptable"]), texts),
        max_size=8,
    )
)
def test_whatever_the_csv_module_writes_is_read_back(tmp_path_factory, labels):
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(["session_id", "judgment", "reason"])
    writer.writerows(
        [session_id, judgment, reason] for session_id, (judgment, reason) in labels.items()
    )
    found = read(tmp_path_factory.mktemp("labels") / "a.csv", file.getvalue())
    assert found == {
        session_id: Label(judgment, reason.strip())
        for session_id, (judgment, reason) in labels.items()
    }


rows = st.lists(
    st.lists(
        st.text(max_size=8) | st.sampled_from(["session_id", "judgment", "acceptable", '"', "\0"]),
        max_size=4,
    ),
    max_size=5,
)


@given(
    st.binary(max_size=80)
    | rows.map(
        lambda rows: "\n".join(map(",".join, [["session_id", "judgment"], *rows])).encode(
            "utf-8", "replace"
        )
    )
)
@example(b"session_id,judgment\ra,acceptable\r")
@example(b'{"session_id": ' + b"[" * 100_000)
@example(b'{"session_id": ' + b"9" * 5000 + b', "judgment": "acceptable"}')
def test_any_bytes_are_labels_or_one_sentence(tmp_path_factory, content):
    for name in ("a.csv", "a.jsonl"):
        try:
            found = read_labels(written(tmp_path_factory.getbasetemp() / name, content), KEY)
        except SettingsError as error:
            assert "\n" not in str(error)
        else:
            assert all(
                session_id.encode() and label.reason.encode() is not None
                for session_id, label in found.by_id.items()
            )


@pytest.mark.parametrize(
    ("left", "of", "refused"), [(6, 12, False), (5, 12, True), (0, 12, True), (0, 9, False)]
)
def test_a_folder_of_labels_that_lost_most_of_its_files_replaces_no_verdict(
    tmp_path, left, of, refused
):
    lake, raw, options = (
        Lake(str(tmp_path / "lake")),
        Redactor(RedactionOptions(enabled=False)),
        JudgingOptions(),
    )
    rows = [make_session_row(session(session_id=f"s{number}")) for number in range(20)]
    lake.stage("sessions", KEY, to_batches(rows, SESSIONS), SESSIONS).commit()
    said = written(
        tmp_path / "said" / "monday.csv",
        HEADER + "".join(f"s{at},acceptable,\n" for at in range(of)),
    )
    judge_partition(lake, KEY, options, read_labels(said.parent, KEY), raw, no_model)[0].commit()
    written(said, HEADER + "".join(f"s{at},acceptable,\n" for at in range(left)))
    if not refused:
        judge_partition(lake, KEY, options, read_labels(said.parent, KEY), raw, no_model)
        return
    with pytest.raises(VolumeError) as error:
        judge_partition(lake, KEY, options, read_labels(said.parent, KEY), raw, no_model)
    assert (error.value.what, error.value.before, error.value.now) == ("labels", of, left)
    options = JudgingOptions(smallest_share=0)
    assert (
        judge_partition(lake, KEY, options, read_labels(said.parent, KEY), raw, no_model)[
            1
        ].verdicts["acceptable by label"]
        == left
    )
    lake.stage("sessions", KEY, to_batches(rows[:3], SESSIONS), SESSIONS).commit()
    assert judge_partition(lake, KEY, JudgingOptions(), Labels(), raw, no_model)[0].rows == 3, (
        "a session that is gone needs no label"
    )


def test_a_label_that_may_be_about_several_agents_is_about_none_and_is_counted(tmp_path):
    lake, raw, intern = (
        Lake(str(tmp_path / "lake")),
        Redactor(RedactionOptions(enabled=False)),
        PartitionKey("office", "intern"),
    )
    for key, ids in ((KEY, ["task0", "task1", "u1"]), (intern, ["task0", "task1", "u2"])):
        rows = [make_session_row(session(session_id=name)) for name in ids]
        lake.stage("sessions", key, to_batches(rows, SESSIONS), SESSIONS).commit()
    header, said = "session_id,judgment,project,agent\n", tmp_path / "said" / "a.csv"
    written(
        said,
        header + "task0,acceptable,,\ntask1,acceptable,shop,\nu1,acceptable,,\nu2,unacceptable,,\n",
    )

    def labels(key: PartitionKey, own: bool = False) -> Labels:
        return judge_partition(
            lake, key, JudgingOptions(), read_labels(said, key, own), raw, no_model
        )[1].labels

    of_shop, of_office, of_its_own = labels(KEY), labels(intern), labels(KEY, own=True)
    assert (set(of_shop.by_id), set(of_office.by_id)) == ({"task1", "u1", "u2"}, {"u1", "u2"})
    assert (
        "1 labels were left out ('task0'), because 'office/intern' has sessions with the same ids"
        in of_shop.notes[0]
    )
    assert "1 labels were left out" in of_office.notes[0] and set(of_its_own.by_id) == {
        "task0",
        "task1",
        "u1",
        "u2",
    }
    assert not any("the same ids" in note for note in of_its_own.notes)
    written(said, header + "task0,acceptable,,\ntask0,acceptable,Shop,support\n")
    assert set(labels(KEY).by_id) == {"task0"}


def no_model(limits: SpendLimits) -> LlmJudge:
    raise AssertionError(limits)
