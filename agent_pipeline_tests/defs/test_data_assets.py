"""The data assets on the sample store, through Dagster: counts, checks, versions, failures."""

import json
import sqlite3
from collections import Counter
from pathlib import Path

import dagster as dg
import pytest

from agent_pipeline.keys import PartitionKey
from agent_pipeline_tests.conftest import SAMPLE
from agent_pipeline_tests.defs.conftest import DATA_ASSETS, Bench, checks

MANIFEST = json.loads((SAMPLE / "manifest.json").read_text(encoding="utf-8"))["partitions"]
CHEAP = DATA_ASSETS[:-1]


def _column(bench: Bench, asset: str, partition: str, column: str) -> list:
    return (
        bench.lake.open(asset, PartitionKey(*partition.split("/")))
        .read([column])[column]
        .to_pylist()
    )


@pytest.mark.slow
@pytest.mark.parametrize("partition", sorted(MANIFEST))
def test_what_was_planted_in_the_sample_is_found_and_counted(bench: Bench, partition: str) -> None:
    assert bench.run(partition, *CHEAP).success
    planted, reasons = (
        MANIFEST[partition],
        _column(bench, "curated_sessions", partition, "drop_reason"),
    )
    damage = _column(bench, "curated_sessions", partition, "drop_detail")
    assert (
        len(_column(bench, "sessions", partition, "session_id"))
        == planted["sessions"]
        == len(reasons)
    )
    assert (
        reasons.count(None)
        == planted["clean_acceptable"]
        == len(_column(bench, "sft_dataset", partition, "row_id"))
        + len(_column(bench, "heldout_dataset", partition, "row_id"))
    )
    assert reasons.count("archived") == planted["archived"]
    assert reasons.count("duplicate") == planted["duplicates"]
    assert damage.count("invalid_item") == planted["broken"]["cut_json"]
    for kind in ("orphan_output", "unanswered_call"):
        assert damage.count(kind) == planted["broken"][kind]
    verdicts = _column(bench, "judged_sessions", partition, "verdict")
    assert [verdicts.count(each) for each in ("acceptable", "unacceptable", None)] == [
        planted["acceptable"],
        planted["unacceptable"],
        planted["unjudged"],
    ]


def test_a_materialization_shows_counts_schema_preview_and_a_picture_but_no_private_text(
    bench: Bench,
) -> None:
    result = bench.run("shop/intern", *CHEAP)
    with sqlite3.connect(bench.store / "sessions/shop/intern/sessions.db") as connection:
        said = next(
            text for (text,) in connection.execute("SELECT msg_json FROM history") if "@" in text
        )
    email = next(word.strip('",.]}') for word in said.split() if "@" in word)
    shown = {}
    for event in result.get_asset_materialization_events():
        metadata = event.materialization.metadata
        assert "dagster/row_count" in metadata and "dagster/column_schema" in metadata
        shown[event.asset_key.to_user_string()] = text = str(
            {name: value.value for name, value in metadata.items()}
        )
        assert email not in text
        assert len(text) < 120_000
    assert "trainable" in shown["sessions"]
    assert "data:image/png" in shown["sft_dataset"]
    assert "broken:orphan_output" in shown["curated_sessions"]


def test_a_lost_session_fails_the_blocking_check_and_stops_what_follows(bench: Bench) -> None:
    assert bench.run("shop/intern", "sessions", "judged_sessions").success
    database = bench.store / "sessions/shop/intern/sessions.db"
    with sqlite3.connect(database) as connection:
        connection.execute("INSERT INTO sessions (session_id) VALUES ('late')")
    # `sessions` is read again, `judged_sessions` is not: curation now sees one session fewer than was read.
    assert bench.run("shop/intern", "sessions").success
    result = bench.run("shop/intern", "curated_sessions", "sft_dataset")
    assert not result.success
    failed = [each for each in result.get_asset_check_evaluations() if not each.passed]
    assert [each.check_name for each in failed] == [
        "every_session_is_kept_or_dropped_with_a_reason"
    ]
    assert "late" in failed[0].metadata["lost"].value
    assert not bench.lake.has("sft_dataset", PartitionKey("shop", "intern"))


def test_a_new_tool_and_other_shares_of_verdicts_are_warnings_that_name_them(bench: Bench) -> None:
    assert bench.run("shop/intern", *CHEAP[:3]).success
    with sqlite3.connect(bench.store / "sessions/shop/intern/sessions.db") as connection:
        tools = json.dumps(
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "fly", "parameters": {"type": "object"}},
                    }
                ]
            }
        )
        for number in range(20):
            connection.execute(
                "INSERT INTO sessions (session_id, context_json) VALUES (?, ?)",
                (f"late{number}", tools),
            )
            for role in ("user", "assistant"):
                item = json.dumps({"role": role, "content": f"{role} {number}"})
                connection.execute(
                    "INSERT INTO history (session_id, msg_json) VALUES (?, ?)",
                    (f"late{number}", item),
                )
    result = bench.run("shop/intern", *CHEAP[:3])
    tools_check, shares_check = (
        checks(result)[name]
        for name in ("tools_are_as_before", "verdicts_and_reasons_are_as_before")
    )
    assert result.success and {check.severity for check in (tools_check, shares_check)} == {
        dg.AssetCheckSeverity.WARN
    }
    assert not tools_check.passed and "tool fly added" in tools_check.description
    assert not shares_check.passed and "drop_reason unjudged: " in shares_check.description
    changed, shares = (
        [each.data for each in check.metadata[name].value.records]
        for check, name in ((tools_check, "changed_tools"), (shares_check, "shares"))
    )
    assert {("fly", "added")} <= {
        (each["tool"], each["change"]) for each in changed
    } and "drop_reason" in {each["of"] for each in shares}


def test_tools_that_only_calls_tell_of_are_a_warning_that_names_the_setting(bench: Bench) -> None:
    items = [
        {"role": "user", "content": "fly"},
        {"type": "function_call", "call_id": "c1", "name": "fly", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "up"},
    ]
    results = [bench.run("shop/intern", "sessions")]
    with sqlite3.connect(bench.store / "sessions/shop/intern/sessions.db") as connection:
        connection.execute("INSERT INTO sessions (session_id) VALUES ('bare')")
        connection.executemany(
            "INSERT INTO history (session_id, msg_json) VALUES ('bare', ?)",
            [(json.dumps(item),) for item in items],
        )
    results.append(bench.run("shop/intern", "sessions"))
    known, bare = (checks(result)["tools_have_schemas"] for result in results)
    assert (
        known.passed
        and not bare.passed
        and bare.severity == dg.AssetCheckSeverity.WARN
        and results[1].success
    )
    assert bare.metadata["inferred"].value == 2 and '[agents."shop/intern"]' in bare.description


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: path.unlink(), "has no partition"),
        (lambda path: path.write_bytes(path.read_bytes()[:9000]), "damaged"),
    ],
)
def test_a_spoilt_store_is_one_sentence_and_leaves_the_last_good_version(
    bench: Bench, spoil, says: str
) -> None:
    assert bench.run("shop/intern", "sessions").success
    before = bench.lake.table("sessions", PartitionKey("shop", "intern")).read_bytes()
    spoil(bench.store / "sessions/shop/intern/sessions.db")
    result = bench.run("shop/intern", "sessions")
    assert not result.success and says in bench.sentence(result)
    assert "\n" not in bench.sentence(result)
    assert bench.lake.table("sessions", PartitionKey("shop", "intern")).read_bytes() == before


def test_a_full_disk_is_one_sentence_and_leaves_the_last_good_version(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench.run("shop/intern", "sessions").success
    before = bench.lake.table("sessions", PartitionKey("shop", "intern")).read_bytes()
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    # A write to this name meets a real full disk.
    monkeypatch.setattr(
        "agent_pipeline.storage.filesystem.uuid4", lambda: type("U", (), {"hex": "full0000"})
    )
    target = bench.lake.table("sessions", PartitionKey("shop", "intern"))
    Path(target.parent.path, ".part-0.parquet-full0000").symlink_to(full)
    result = bench.run("shop/intern", "sessions")
    assert not result.success and "disk is full" in bench.sentence(result)
    assert target.read_bytes() == before


def test_private_data_that_was_written_fails_the_blocking_check_without_being_shown(
    bench: Bench, monkeypatch
) -> None:
    with sqlite3.connect(bench.store / "sessions/shop/intern/sessions.db") as connection:
        connection.execute("INSERT INTO sessions (session_id) VALUES ('leaky')")
        message = json.dumps({"role": "user", "content": "I am ann@private.example"})
        connection.execute(
            "INSERT INTO history (session_id, msg_json) VALUES ('leaky', ?)", (message,)
        )
    with monkeypatch.context() as broken:
        broken.setattr(
            "agent_pipeline.redaction.Redactor.redact", lambda self, session, also=None: Counter()
        )
        result = bench.run("shop/intern", "sessions", "judged_sessions")
    assert not result.success and not bench.lake.has(
        "judged_sessions", PartitionKey("shop", "intern")
    )
    (failed,) = [each for each in result.get_asset_check_evaluations() if not each.passed]
    assert failed.check_name == "nothing_private_was_written"
    assert "leaky" in failed.metadata["in_sessions"].value and "EMAIL" in str(
        failed.metadata["found"].value.records
    )
    assert "ann@" not in str(failed.metadata)
