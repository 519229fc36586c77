"""Lineage by record, and forgetting: what names a session is found, and when it is forgotten nothing does, and nothing else is gone."""

import io
import json
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from markupsafe import escape
from typer.testing import CliRunner

import agent_pipeline.storage.tables
from agent_pipeline.cli.app import app
from agent_pipeline.datasets.cards import Publication
from agent_pipeline.datasets.ledger import LEDGER_TABLE, read_ledger, record_tasks
from agent_pipeline.datasets.preferences import PREFERENCES, pair_sessions
from agent_pipeline.datasets.publishing import hash_tables, publish
from agent_pipeline.datasets.sft import SFT, make_sft_rows
from agent_pipeline.datasets.sft_tables import HELDOUT_TABLE, read_sft_columns
from agent_pipeline.datasets.splits import SplitSizes, find_root_tasks
from agent_pipeline.definitions import build_defs
from agent_pipeline.defs.io_managers.artifacts import ArtifactIOManager
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.governance.forgetting import forget, forget_sessions
from agent_pipeline.governance.lineage import (
    UnknownSessionError,
    model_lineage,
    models_of,
    naming,
    session_lineage,
)
from agent_pipeline.governance.scanning import found_in, scan
from agent_pipeline.ingestion.block_list import FORGOTTEN_TABLE, BlockList, make_alias
from agent_pipeline.ingestion.discovery import discover
from agent_pipeline.ingestion.ingestion import ingest
from agent_pipeline.ingestion.reading import ReadingOptions
from agent_pipeline.ingestion.seen_sessions import SEEN_TABLE
from agent_pipeline.judging.context import EvaluationContext
from agent_pipeline.judging.curation import curate, make_candidate
from agent_pipeline.judging.llm_client import AnswerCache, Endpoint, LlmClient, SpendLimits
from agent_pipeline.judging.llm_judge import LlmJudge
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.selection.vectors import OLD_SPACE, VECTORS
from agent_pipeline.sessions.session import Session, hash_json
from agent_pipeline.sessions.tables import (
    CURATED,
    JUDGED,
    make_session_row,
    restore_session,
    to_batches,
    to_rows,
    to_table,
)
from agent_pipeline.sources import SOURCES
from agent_pipeline.sources.base import TraceSource
from agent_pipeline.storage.lake import MANIFEST, Artifact, Lake
from agent_pipeline.training.provenance import name_rows
from agent_pipeline_tests.conftest import SAMPLE
from agent_pipeline_tests.defs.conftest import DATA_ASSETS, Bench, cells, metadata
from agent_pipeline_tests.judging.endpoint import endpoint, verdict
from agent_pipeline_tests.lakes import artifact

KEY, OTHER = PartitionKey("shop", "support"), PartitionKey("shop", "billing")
OPTIONS = ReadingOptions(redaction=RedactionOptions(enabled=False))
INDEX = pa.schema([("row_id", pa.string()), ("session_id", pa.string()), ("task_key", pa.string()), ("chosen", pa.bool_()), ("duplicate_of", pa.string())])  # fmt: skip


class Store(TraceSource):
    """A session store in memory."""

    name = looks_like = "memory"

    def __init__(self, sessions: Sequence[Session], key: PartitionKey = KEY) -> None:
        super().__init__("memory")
        self._sessions, self._key = sorted(sessions, key=lambda each: each.session_id), key

    def partitions(self) -> list[PartitionKey]:
        return [self._key]

    def sessions(self, key: PartitionKey) -> Iterator[Session]:
        for each in self._sessions:
            yield Session(
                **{
                    name: getattr(each, name)
                    for name in Session.__struct_fields__
                    if name != "messages"
                },
                messages=[*each.messages],
            )


def conversation(
    session_id: str,
    said: str,
    good: bool | None = True,
    parent: str | None = None,
    task: str | None = None,
) -> Session:
    """A session in which the agent says something that nobody else says."""
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": f"Please help with {task or said}."},
        {"role": "assistant", "content": said},
    ]
    judgment = None if good is None else "acceptable" if good else "unacceptable"
    fields: dict[str, Any] = {
        "project": "shop",
        "agent": "support",
        "source": "memory",
        "judgment": judgment,
    }
    return Session(
        session_id=session_id, messages=messages, parent_session_id=parent, task_id=task, **fields
    )


def make_lake(
    root: Path, sessions: Sequence[Session], key: PartitionKey = KEY, openai: bool = False
) -> Lake:
    """A lake as the assets make it, by the functions that they call: tables, JSONL, Hugging Face folders, a model and what came of it."""
    lake = Lake(str(root / "lake"), root / "cache")
    ingest(Store(sessions, key), key, OPTIONS, lake).table.commit()
    rows = list(to_rows(lake.open("sessions", key).iter_batches()))
    first: dict[str, str] = {}
    for row in rows:
        good = row["judgment"] == "acceptable"
        original = (
            first.setdefault(row["content_sha256"], row["session_id"])
            if good
            else row["session_id"]
        )
        reason = (
            "duplicate_of" if original != row["session_id"] else None if good else "unacceptable"
        )
        row |= {
            "verdict": row["judgment"],
            "verdict_by": "judgment",
            "verdict_reasons": None,
            "measures": {},
            "opinions": {},
        }
        row |= {
            "kept": reason is None,
            "drop_reason": reason,
            "duplicate_of": original if original != row["session_id"] else None,
        }
        row |= {
            "use": {None: "positive", "unacceptable": "negative"}.get(reason, "neither"),
            "missed_measures": [],
        }
    lake.stage("judged_sessions", key, to_batches(rows, JUDGED, 3), JUDGED).commit()
    lake.stage("curated_sessions", key, to_batches(rows, CURATED, 3), CURATED).commit()
    roots = find_root_tasks(rows)
    trials = [
        restore_session(row | {"task_key": roots.get(row["session_id"], row["task_key"])})
        for row in rows
    ]
    ledger = record_tasks(lake, key, pa.array([each.task_key for each in trials]), SplitSizes())
    kept = {row["session_id"] for row in rows if row["kept"]}
    sft = list(
        make_sft_rows(
            [make_session_row(each) for each in trials if each.session_id in kept], ledger
        )
    )
    pairs = list(
        pair_sessions(
            [t for t in trials if t.session_id in kept],
            [t for t in trials if t.judgment == "unacceptable"],
            ledger,
        )
    )
    index = [
        {
            "row_id": row["row_id"],
            "session_id": row["session_id"],
            "task_key": row["task_key"],
            "chosen": at == 0,
        }
        | {"duplicate_of": sft[at - 1]["session_id"] if at else None}
        for at, row in enumerate(sft)
    ]
    for asset, schema, made in (
        (HELDOUT_TABLE, SFT, [row for row in sft if row["split"] == "test"]),
        ("sft_dataset", SFT, [row for row in sft if row["split"] != "test"]),
        ("preference_dataset", PREFERENCES, pairs),
        ("sft_coreset", INDEX, index),
    ):
        staged = lake.stage(asset, key, to_batches(made, schema, 2), schema)
        staged.commit()
        if schema is not INDEX and asset != HELDOUT_TABLE:
            form = "openai" if openai and schema is SFT else "conversational"
            facts = {
                "description": "A test.",
                "task": "text-generation",
                "huggingface": True,
                "table_sha256": hash_tables(lake, asset, key),
            }
            publish(
                lake,
                Publication(
                    asset=asset, partition=str(key), agents=[str(key)], format=form, **facts
                ),
            )
    for asset in (OLD_SPACE, VECTORS):
        lake.stage(asset, key, to_table([{"text": "of all"}], pa.schema([("text", pa.string())])).to_batches(), pa.schema([("text", pa.string())])).commit()  # fmt: skip
    add_models(lake, key, sft)
    return lake


def add_models(lake: Lake, key: PartitionKey, rows: list[dict]) -> None:
    """An adapter, its evaluation, its export and Ollama's model, with manifests like theirs."""
    trained_on = [row for row in rows if row["split"] == "train"]
    measured = [row for row in rows if row["split"] == "test"]
    trained = {
        "base_model": "base",
        "base_revision": "r1",
        "config": {"lora_r": 4},
        **name_rows(trained_on),
    }
    adapter = build(
        lake,
        key,
        "sft_adapter",
        trained,
        {"training.json": {"row_ids": [row["row_id"] for row in trained_on]}},
    )
    told = [{"session_id": row["session_id"], "row_id": row["row_id"], "prompt_tail": "user: help", "expected": row["messages"][-1]["content"]} for row in measured]  # fmt: skip
    examples = [{"kind": "gained", **each} for each in told]
    seen = {
        "samples.json": told,
        "report.html": str(escape(json.dumps(told))),
        "adapter.eval": zipped("samples/1.json", json.dumps(told)),
    }
    build(
        lake,
        key,
        "evaluation",
        {"adapter": adapter, "config": {}, **name_rows(measured)},
        seen,
        {"examples": examples},
    )
    origin = {
        "adapter": adapter,
        "adapter_made_from": trained,
        "config": {},
        "compared": name_rows(measured),
    }
    export = build(lake, key, "gguf_export", origin, {"model-f16.gguf": "GGUF"})
    build(lake, key, "serving", {"gguf_export": export, "name": "shop"}, {"Modelfile": "FROM it"})
    transcripts = "".join(json.dumps({"messages": row["messages"]}) + "\n" for row in measured)
    played = {
        "adapter": adapter,
        "gguf_export": export,
        "world": "shop",
        **name_rows(measured),
    }
    build(
        lake,
        key,
        "episodes",
        played,
        {"episodes.jsonl": transcripts, "episodes.md": transcripts},
        {"players": {}},
    )


def zipped(name: str, text: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr(name, text)
    return file.getvalue()


def build(
    lake: Lake,
    key: PartitionKey,
    asset: str,
    made_from: dict,
    files: dict[str, Any],
    report: dict | None = None,
) -> str:
    identity = hash_json(made_from)
    parents = [made_from[name] for name in ("adapter", "gguf_export") if name in made_from]
    texts = {
        name: content if isinstance(content, str | bytes) else json.dumps(content)
        for name, content in files.items()
    }
    return artifact(
        lake,
        asset,
        key,
        made_from,
        texts,
        report,
        identity,
        tables={"sft_dataset": "1" * 64},
        parents=parents,
    ).identity


def everything(lake: Lake, but: str = "") -> dict[str, list[dict]]:
    """The rows of every table, without one session's and without what may name it."""
    found = {}
    for file in lake.files():
        if (
            file.kind == "tables"
            and file.path.suffix == ".parquet"
            and file.asset not in (SEEN_TABLE, FORGOTTEN_TABLE, LEDGER_TABLE, OLD_SPACE, VECTORS)
        ):
            rows = to_rows(lake.open(file.asset, file.key).iter_batches())
            free = ("parent_session_id", "duplicate_of", "task_key", "case_id")
            mine = [
                row
                for row in rows
                if but not in (row["session_id"], row.get("rejected_session_id"))
            ]
            found[f"{file.asset} {file.key}"] = [
                {name: value for name, value in row.items() if name not in free} for row in mine
            ]
    return found


MARK = "the blue heron left at 14:52"
SHOP = [
    conversation("plain", "said plainly", task="one"),
    conversation("gone", MARK, task="one"),
    conversation("gone2", "said by one whose id begins so", task="one"),
    conversation("bad", "said badly", good=False, task="one"),
    conversation("worse", "said worse", good=False, task="one"),
    conversation("child", "said by its child", parent="gone"),
    conversation("twin", MARK, task="one"),
    conversation("unjudged", "said to nobody", good=None),
    *(
        conversation(f"other-{number:02}", f"said by number {number}", task=f"task {number}")
        for number in range(10)
    ),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    make_lake(folder, SHOP)
    return folder


@pytest.fixture
def lake(made: Path, tmp_path: Path) -> Lake:
    """A test's own copy of a lake with the shop's sessions."""
    shutil.copytree(made / "lake", tmp_path / "lake")
    return Lake(str(tmp_path / "lake"), tmp_path / "cache")


def trained_and_measured(lake: Lake) -> tuple[str, str]:
    """A session that the model was trained on, and one that it was measured on; neither has a twin, a child or a partner."""
    rows = read_sft_columns(lake, KEY, ["session_id", "split"]).to_pylist()
    return tuple(next(r["session_id"] for r in rows if r["split"] == side and r["session_id"].startswith("other")) for side in ("train", "test"))  # fmt: skip


def test_a_session_is_followed_through_every_table_to_the_model_that_ollama_serves(
    lake: Lake,
) -> None:
    trained_on, measured = trained_and_measured(lake)
    found = session_lineage(lake, trained_on)
    assert {row.asset for row in found.rows if row.role == "session"} == {
        "sessions", SEEN_TABLE, "judged_sessions", "curated_sessions", "sft_dataset", "sft_coreset"
    }  # fmt: skip
    [curated] = [row for row in found.rows if row.asset == "curated_sessions"]
    assert curated.facts["kept"] is True and curated.partition == "shop/support"
    assert {Path(file).name.partition("-")[0].removesuffix(".jsonl") for file in found.files} == {
        "train"
    } and len(found.files) == 2
    assert {use.asset: use.roles for use in found.models} == {
        "sft_adapter": ["trained on"],
        "evaluation": ["made from"],
        "gguf_export": ["trained on"],
        "serving": ["made from"],
        "episodes": ["made from"],
    }
    assert all(use.latest for use in found.models)
    assert {use.asset: use.roles for use in models_of(lake, measured)} == {
        "evaluation": ["measured on"],
        "gguf_export": ["compared on"],
        "episodes": ["measured on"],
    }


def test_a_dropped_session_says_why_and_a_rejected_one_that_it_was(lake: Lake) -> None:
    roles = {
        (row.asset, row.role): row.facts
        for name in ("bad", "worse")
        for row in session_lineage(lake, name).rows
    }
    assert roles["curated_sessions", "session"]["drop_reason"] == "unacceptable"
    assert ("preference_dataset", "rejected") in roles and (
        "preference_dataset",
        "session",
    ) not in roles
    gone = {(row.asset, row.role) for row in session_lineage(lake, "gone").rows}
    assert {
        ("curated_sessions", "original"),
        ("sessions", "parent"),
        ("sft_coreset", "session"),
    } <= gone
    assert not session_lineage(lake, "nobody").rows and not session_lineage(lake, "on").models


def test_lineage_tells_no_word_of_a_conversation(lake: Lake) -> None:
    assert MARK.encode() not in msgspec.json.encode(session_lineage(lake, "gone"))
    assert MARK.encode() not in msgspec.json.encode(
        model_lineage(lake, str(lake.latest("gguf_export", KEY).path))
    )


def test_an_export_leads_to_its_adapter_its_rows_and_their_sessions(lake: Lake) -> None:
    export = lake.latest("gguf_export", KEY)
    for name in (
        str(export.path),
        str(export.path / "model-f16.gguf"),
        export.identity,
        export.identity[:12],
    ):
        found = model_lineage(lake, name)
        assert (found.asset, found.base_model, found.base_revision) == (
            "gguf_export",
            "base",
            "r1",
        ) and found.latest
    [adapter] = found.made_from
    assert (
        adapter.settings == {"lora_r": 4}
        and adapter.tables == {"sft_dataset": "1" * 64}
        and adapter.code["code_sha256"]
    )
    assert (
        adapter.rows == len(adapter.sessions) == sum(adapter.sessions_by["source"].values())
        and adapter.rows_unchanged is True
    )
    [ollama] = [use for use in models_of(lake, adapter.sessions[0]) if use.asset == "serving"]
    assert model_lineage(lake, ollama.path).made_from[0].identity == export.identity


def test_a_gguf_that_was_copied_out_of_the_lake_leads_to_its_export(
    lake: Lake, tmp_path: Path
) -> None:
    export = lake.latest("gguf_export", KEY)
    copy = tmp_path / "elsewhere.gguf"
    shutil.copyfile(export.path / "model-f16.gguf", copy)
    assert model_lineage(lake, str(copy)).identity == export.identity
    copy.write_text("another model", encoding="utf-8")
    with pytest.raises(DataError, match=MANIFEST):
        model_lineage(lake, str(copy))


@pytest.mark.parametrize(
    ("model", "says"),
    [("deadbeef", "no model"), ("short", "no model"), ("/", "has no manifest.json")],
)
def test_a_model_that_is_not_there_is_one_sentence(lake: Lake, model: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        model_lineage(lake, model)


@pytest.mark.parametrize("openai", [False, True])
def test_a_forgotten_session_is_in_no_file_any_more_and_all_others_are_as_they_were(
    tmp_path: Path, openai: bool
) -> None:
    lake = make_lake(
        tmp_path, [each for each in SHOP if each.session_id not in ("twin", "gone2")], openai=openai
    )
    rows = {
        asset: lake.open(asset, KEY).metadata.num_rows
        for asset in ("sessions", "judged_sessions", "curated_sessions")
    }
    assert scan(lake, [MARK]) and scan(lake, ['"gone"', "gone"])
    before = everything(lake, but="gone")
    found = forget(lake, "gone")
    assert scan(lake, [MARK, "gone"]) == {}
    assert everything(lake, but="gone") == before
    assert {asset: lake.open(asset, KEY).metadata.num_rows for asset in rows} == {
        asset: count - 1 for asset, count in rows.items()
    }
    assert found.partitions == ["*"] and found.side_chains == ["child"] and not found.same_content
    assert not any(lake.has(cache, KEY) for cache in (OLD_SPACE, VECTORS, SEEN_TABLE))
    assert {row["parent_session_id"] for row in rows_of(lake, "sessions")} == {
        None,
        make_alias("gone"),
    }
    for asset in ("sft_adapter", "evaluation", "gguf_export", "serving"):
        assert lake.latest(asset, KEY)  # whole: the sizes in its manifest are those of its files


def test_copies_are_made_again_without_the_session_by_the_code_that_made_them(
    tmp_path: Path,
) -> None:
    lake = make_lake(tmp_path, SHOP, openai=True)
    trained_on, _ = trained_and_measured(lake)
    jsonl, card = (
        lake.folder("jsonl", "sft_dataset", KEY) / "train.jsonl",
        lake.folder("huggingface", "sft_dataset", KEY) / "README.md",
    )
    before = jsonl.read_text().splitlines()
    said = next(each for each in SHOP if each.session_id == trained_on).messages[-1]["content"]
    assert (
        not any(trained_on in line for line in before)
        and f"| train | {len(before)} |" in card.read_text()
    )
    changes = {change.path: change for change in forget(lake, trained_on).changes}
    assert changes[str(jsonl)].rebuilt and changes[str(card)].rebuilt
    assert jsonl.read_text().splitlines() == [
        line for line in before if json.loads(line)["messages"][-1]["content"] != said
    ]
    assert scan(lake, [f'"{said}"']) == {} and f"| train | {len(before) - 1} |" in card.read_text()


def test_copies_of_which_no_record_says_how_they_were_made_go_where_the_session_may_be_in_them(
    lake: Lake,
) -> None:
    for file in list(lake.files()):
        if file.kind == "published":
            file.path.unlink()
    unnamed = lake.folder("jsonl", "their_own", KEY) / "train.jsonl"
    unnamed.parent.mkdir(parents=True)
    unnamed.write_text("{}\n")
    changes = forget(lake, "gone").changes
    assert {file.asset for file in lake.files() if file.kind in ("jsonl", "huggingface")} == {
        "their_own"
    }
    assert any(
        change.deleted
        and change.path == str(lake.folder("jsonl", "sft_dataset", KEY) / "train.jsonl")
        for change in changes
    )


def test_a_session_that_is_nowhere_is_an_error_with_the_nearest_ids_and_nothing_changes(
    lake: Lake,
) -> None:
    with pytest.raises(UnknownSessionError) as error:
        forget(lake, "plaim")
    assert error.value.nearest == ["plain"] and not BlockList.read(lake).entries
    with pytest.raises(UnknownSessionError):
        forget(lake, "gone", OTHER)
    forget(lake, "gone")
    assert forget(lake, "gone").changes == []


def test_several_sessions_are_forgotten_as_one_after_the_other(tmp_path: Path) -> None:
    """One pass leaves the lake that one pass per session leaves, with the union of the reports."""
    sessions = [session for session in SHOP if session.session_id != "gone2"]
    one_by_one = make_lake(tmp_path / "a", sessions, openai=True)
    at_once = make_lake(tmp_path / "b", sessions, openai=True)
    trained_on, measured = trained_and_measured(one_by_one)
    ids = list(dict.fromkeys(["gone", "twin", "child", trained_on, measured]))
    reports = [forget(one_by_one, session_id) for session_id in ids]
    report = forget_sessions(at_once, [*ids, "nobody", ids[0]])
    assert report.session_ids == ids and report.unknown == ["nobody"]
    assert report.aliases == [make_alias(session_id) for session_id in ids]
    assert scan(at_once, ids) == scan(one_by_one, ids) == {}
    for name in ("sessions", "judged_sessions", "curated_sessions", "sft_dataset"):
        assert rows_of(at_once, name) == rows_of(one_by_one, name), name
    assert rows_of(at_once, LEDGER_TABLE) == rows_of(one_by_one, LEDGER_TABLE)
    assert BlockList.read(at_once) == BlockList.read(one_by_one)
    assert {use.asset: set(use.roles) for use in models_of(at_once, *ids)} == {
        use.asset: set(use.roles) for use in models_of(one_by_one, *ids)
    }
    assert {use.identity for use in report.to_retrain} == {
        use.identity for each in reports for use in each.to_retrain
    }
    assert not report.side_chains and not report.same_content
    with pytest.raises(UnknownSessionError):
        forget_sessions(at_once, ["nobody", "no one"])


def test_forget_reads_ids_from_a_file(shell: CliRunner, lake: Lake, tmp_path: Path) -> None:
    ids = tmp_path / "ids.txt"
    ids.write_text("\ufeffgone\r\n\ntwin\r\n", encoding="utf-8")
    refused = shell.invoke(app, ["forget", "--yes"])
    assert isinstance(refused.exception, SettingsError)
    command = ["forget", "nobody", "--file", str(ids)]
    asked = shell.invoke(app, command, input="n\n")
    assert asked.exit_code == 1 and "Remove 3 sessions from every partition" in asked.stdout
    done = shell.invoke(app, [*command, "--yes"])
    assert done.exit_code == 1 and "2 sessions are forgotten" in done.stdout
    assert "The lake does not have nobody" in done.stdout
    assert scan(lake, ['"gone"', '"twin"']) == {}
    assert shell.invoke(app, ["forget", "--file", str(ids), "--yes"]).exit_code == 0


def test_what_has_the_same_words_and_what_it_began_is_told(lake: Lake) -> None:
    found = forget(lake, "gone")
    assert found.same_content == ["twin"] and found.side_chains == ["child"]
    assert set(scan(lake, [MARK]).values().__iter__().__next__()) == {MARK}
    assert [
        row["duplicate_of"]
        for row in rows_of(lake, "curated_sessions")
        if row["session_id"] == "twin"
    ] == [make_alias("gone")]
    assert make_alias("gone") in {row["duplicate_of"] for row in rows_of(lake, "sft_coreset")}


@pytest.mark.parametrize("shared_id", [False, True])
def test_a_copy_with_other_call_ids(tmp_path: Path, shared_id: bool) -> None:
    """Curation drops such a copy as a duplicate, and the night after `forget` would train it."""
    lake = make_lake(
        tmp_path,
        [
            call_with_id("gone", "call_1", "found"),
            call_with_id("twin", "call_1" if shared_id else "run2_7", "found"),
            call_with_id("other", "call_1", "not found"),
        ],
    )
    decisions = curate(map(make_candidate, rows_of(lake, "judged_sessions")))
    assert [each.duplicate_of for each in decisions] == [None, None, "gone"]
    assert forget(lake, "gone").same_content == ["twin"]


def call_with_id(session_id: str, call_id: str, result: str) -> Session:
    """A session in which the agent calls a tool."""
    function = {"name": "find_order", "arguments": "{}"}
    session = conversation(session_id, "Done.", task="one")
    session.messages[-1:] = [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": call_id, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call_id, "content": result},
        *session.messages[-1:],
    ]
    return session


def test_an_alias_takes_the_place_of_the_id_where_a_row_of_another_session_names_one(
    tmp_path: Path,
) -> None:
    lake = make_lake(
        tmp_path,
        [
            conversation("r", "said r"),
            conversation("rs", "said rs"),
            conversation("rt", "said rt"),
            *SHOP[-10:],
        ],
    )
    before = {row["row_id"]: row["duplicate_of"] for row in rows_of(lake, "sft_coreset")}
    assert before["rs"] == "r" and before["rt"] == "rs"
    forget(lake, "r")
    after = {row["row_id"]: row["duplicate_of"] for row in rows_of(lake, "sft_coreset")}
    assert after.pop("rs") == make_alias("r") and after.items() < before.items()
    mentions = pa.table(
        {
            "duplicate_of": ["a.b", "a.b#1,2", "axb", "a.bc", None],
            "case_id": ["session:a.b", "a.b", "b", "c", "d"],
        }
    )
    assert {name: mask.to_pylist() for name, mask in naming(mentions, ["a.b"]).items()} == {
        "duplicate_of": [True, False, False, False, False],
        "case_id": [True, False, False, False, False],
    }


def rows_of(lake: Lake, asset: str, key: PartitionKey | None = KEY) -> list[dict]:
    return list(to_rows(lake.open(asset, key).iter_batches()))


def test_the_models_that_learnt_from_it_are_named_before_and_after_and_know_it_by_its_alias_alone(
    lake: Lake,
) -> None:
    trained_on, measured = trained_and_measured(lake)
    told = forget(lake, trained_on)
    assert {use.asset for use in told.to_retrain} == {
        "sft_adapter",
        "evaluation",
        "gguf_export",
        "serving",
        "episodes",
    }
    assert forget(lake, measured).to_retrain == []
    assert {use.asset for use in session_lineage(lake, trained_on).models} == {
        use.asset for use in told.to_retrain
    }
    found = model_lineage(lake, lake.latest("sft_adapter", KEY).identity)
    assert (
        trained_on not in found.sessions and found.forgotten == 1 and found.rows_unchanged is None
    )
    report = lake.latest("evaluation", KEY)
    assert all(
        entry["session_id"] != measured
        for entry in json.loads((report.path / "samples.json").read_text())
    )
    assert len(report.manifest["report"]["examples"]) == len(
        json.loads((report.path / "samples.json").read_text())
    )
    assert make_alias(measured) in report.manifest["made_from"]["sessions"]


def test_the_page_and_the_log_of_an_evaluation_are_deleted_with_a_session_that_they_show(
    lake: Lake,
) -> None:
    trained_on, measured = trained_and_measured(lake)
    found = {
        file.path.name
        for file in lake.files()
        if found_in(file, [f"said by number {int(measured[-2:])}"])
    }
    assert {"report.html", "adapter.eval"} <= found
    forget(lake, trained_on)
    assert {"report.html", "adapter.eval"} <= set(lake.latest("evaluation", KEY).manifest["files"])
    forget(lake, measured)
    assert set(lake.latest("evaluation", KEY).manifest["files"]) == {"samples.json"}


def test_the_scan_reads_what_html_escapes_and_what_a_zip_packs(lake: Lake) -> None:
    folder = lake.latest("evaluation", KEY).path
    (folder / "page.html").write_text(str(escape('it\'s <b> & "c"')))
    (folder / "log.eval").write_bytes(zipped("samples/1.json", json.dumps('it\'s <b> & "c"' * 9)))
    assert {Path(path).name for path in scan(lake, ['it\'s <b> & "c"'])} == {
        "page.html",
        "log.eval",
    }


def test_the_transcripts_of_episodes_are_deleted_and_their_figures_stay(lake: Lake) -> None:
    _, measured = trained_and_measured(lake)
    before = lake.latest("episodes", KEY)
    forget(lake, measured)
    after = lake.latest("episodes", KEY)
    assert (
        set(before.manifest["files"]) == {"episodes.jsonl", "episodes.md"}
        and after.manifest["files"] == {}
    )
    assert after.manifest["report"] == {"players": {}} and not list(after.path.glob("episodes*"))


def test_reading_the_store_again_does_not_bring_it_back(lake: Lake) -> None:
    forget(lake, "gone")
    found = ingest(Store(SHOP), KEY, OPTIONS, lake)
    assert (found.forgotten, found.copied, found.table.rows) == (1, 0, len(SHOP) - 1)
    found.table.commit()
    assert scan(lake, ['"gone"']) == {} and [row["parent_session_id"] for row in rows_of(lake, "sessions") if row["session_id"] == "child"] == [make_alias("gone")]  # fmt: skip
    again = ingest(Store(SHOP), KEY, OPTIONS, lake)
    assert (again.forgotten, again.copied) == (
        1,
        len(SHOP) - 1,
    ) and again.table.sha256 == found.table.sha256


def test_of_two_partitions_with_one_id_both_are_meant_unless_one_is_named(
    made: Path, tmp_path: Path
) -> None:
    for name in ("both", "one"):
        shutil.copytree(made / "lake", tmp_path / name / "lake")
        lake = make_lake(tmp_path / name, SHOP, OTHER)
        assert {row.partition for row in session_lineage(lake, "gone").rows} == {
            str(KEY),
            str(OTHER),
        }
        found = forget(lake, "gone", OTHER if name == "one" else None)
        assert found.partitions == [str(OTHER) if name == "one" else "*"]
        left = {
            row.partition for row in session_lineage(lake, "gone").rows if row.role == "session"
        }
        assert left == ({str(KEY)} if name == "one" else set())
        assert [ingest(Store(SHOP, key), key, OPTIONS, lake).forgotten for key in (KEY, OTHER)] == (
            [0, 1] if name == "one" else [1, 1]
        )


def test_a_table_of_all_partitions_loses_the_row_of_the_one_that_is_meant(lake: Lake) -> None:
    schema = pa.schema([("session_id", pa.string()), ("project", pa.dictionary(pa.int32(), pa.string())), ("agent", pa.string_view()), ("text", pa.string())])  # fmt: skip
    rows = [
        {"session_id": "gone", "project": "shop", "agent": agent, "text": agent}
        for agent in ("support", "billing")
    ]
    lake.stage(
        "multi_task_dataset", None, pa.Table.from_pylist(rows, schema).to_batches(), schema
    ).commit()
    jsonl = lake.root / "jsonl" / "multi_task_dataset" / "train.jsonl"
    jsonl.parent.mkdir(parents=True)
    jsonl.write_text("".join(json.dumps(row) + "\n" for row in rows))
    forget(lake, "gone", OTHER)
    assert [row["agent"] for row in rows_of(lake, "multi_task_dataset", None)] == ["support"]
    assert not jsonl.exists()  # no record says how it was made
    forget(lake, "gone")
    assert rows_of(lake, "multi_task_dataset", None) == []


def splits(lake: Lake) -> dict[str, str]:
    return {
        row["task_key"]: row["split"]
        for row in read_ledger(lake, KEY, SplitSizes()).recorded.to_pylist()
    }


def test_a_task_that_is_the_sessions_own_text_or_id_leaves_the_ledger_and_others_keep_their_side(
    tmp_path: Path,
) -> None:
    silent = Session(session_id="silent", project="shop", agent="support", source="memory", judgment="acceptable", messages=[{"role": "assistant", "content": "hi"}])  # fmt: skip
    own = conversation("own", "of a task without a name")
    lake = make_lake(
        tmp_path, [*SHOP, silent, own, conversation("of-silent", "said for it", parent="silent")]
    )
    before = splits(lake)
    text = next(row["task_key"] for row in rows_of(lake, "sessions") if row["session_id"] == "own")
    assert text.startswith("text:") and text in before and "session:silent" in before
    forget(lake, "own")
    assert splits(lake) == {task: side for task, side in before.items() if task != text}
    forget(lake, "silent")
    after = splits(lake)
    assert (
        "session:silent" not in after
        and after[f"session:{make_alias('silent')}"] == before["session:silent"]
    )
    assert set(read_sft_columns(lake, KEY, ["task_key"])["task_key"].to_pylist()) <= set(after)
    assert "one" in before and (forget(lake, "plain") and "one" in splits(lake))


@pytest.mark.slow
def test_killed_at_any_moment_it_completes_when_it_is_run_again(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = agent_pipeline.storage.tables.put_file
    kills = 0  # each third of the moments at which a file is put in its place
    while True:
        root = tmp_path / str(kills)
        shutil.copytree(made / "lake", root / "lake")
        lake = Lake(str(root / "lake"), root / "cache")
        steps = iter(range(1000))

        def killed(
            *arguments: Any, steps: Iterator[int] = steps, at: int = kills, **options: Any
        ) -> None:
            if next(steps) == at:
                raise KeyboardInterrupt
            put(*arguments, **options)

        monkeypatch.setattr(agent_pipeline.storage.tables, "put_file", killed)
        try:
            forget(lake, "gone")
        except KeyboardInterrupt:
            pass
        else:
            break
        finally:
            monkeypatch.setattr(agent_pipeline.storage.tables, "put_file", put)
        forget(lake, "gone")
        assert scan(lake, ['"gone"']) == {} and not [
            row for row in session_lineage(lake, "gone").rows if row.role == "session"
        ], kills
        found = ingest(Store(SHOP), KEY, OPTIONS, lake)
        assert (found.forgotten, found.table.rows) == (1, len(SHOP) - 1), kills
        for asset in ("sft_adapter", "evaluation", "gguf_export"):
            assert lake.latest(asset, KEY), kills
        shutil.rmtree(root)
        kills += 3
    assert kills > 12
    assert forget(lake, "gone").changes == []


def test_beside_a_process_that_writes_it_refuses_and_what_a_killed_one_left_goes_too(
    lake: Lake,
) -> None:
    folder = Path(lake.table("sessions", KEY).parent.path)
    left = folder / ".part-0.parquet-0123abcd"
    left.write_text(MARK)
    with lake.run_of(KEY), pytest.raises(DataError, match="shop/support"):
        forget(lake, "gone")
    assert not BlockList.read(lake).entries
    with lake.run_of(PartitionKey("another", "agent")):
        forget(lake, "gone")
    assert not left.exists()


def test_what_a_run_wrote_until_its_partition_was_held_is_forgotten_too(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_of = Lake.run_of

    def ended(self: Lake, key: PartitionKey | None, *waiting: Any) -> Any:
        build(
            self,
            KEY,
            "sft_adapter",
            {"sessions": ["gone"], "of": str(key)},
            {"training.json": {"row_ids": ["gone"]}},
        )
        return run_of(self, key, *waiting)

    monkeypatch.setattr(Lake, "run_of", ended)
    forget(lake, "gone")
    assert scan(lake, ['"gone"']) == {}


def test_a_training_that_was_killed_cannot_go_on_with_it_and_others_can(lake: Lake) -> None:
    folders = {}
    for name, sessions in (("with", ["gone"]), ("without", ["plain"])):
        folders[name] = lake.building("sft_adapter", KEY, hash_json(name))
        begun = {
            "identity": hash_json(name),
            "partition": str(KEY),
            "made_from": {"sessions": sessions},
        }
        (folders[name] / MANIFEST).write_text(json.dumps(begun))
    assert any(
        change.deleted and change.path == str(folders["with"])
        for change in forget(lake, "gone").changes
    )
    assert not folders["with"].exists() and folders["without"].exists()


def test_what_the_language_model_said_of_it_leaves_the_judges_cache(
    lake: Lake, tmp_path: Path
) -> None:
    path = tmp_path / "judge.sqlite"
    answers = AnswerCache(path)
    answers.put("1", f"It says: {MARK}", make_alias("gone"))
    answers.put("2", "the better of two", f"{make_alias('plain')} {make_alias('gone')}")
    answers.put("3", "kind", make_alias("plain"))
    answers.put("4", "of an older version")
    answers.close()
    found = forget(lake, "gone", judge_cache=path)
    assert (found.judge_answers, found.unclear_answers) == (2, 1)
    assert not any(MARK.encode() in each.read_bytes() for each in tmp_path.glob("judge.sqlite*"))
    left = AnswerCache(path)
    assert [left.get(each) for each in "1234"] == [None, None, "kind", "of an older version"]
    left.close()


def test_the_judge_notes_of_each_answer_whom_it_is_about(lake: Lake, tmp_path: Path) -> None:
    path = tmp_path / "judge.sqlite"
    gone, plain = (
        EvaluationContext.from_session(conversation(name, f"said {name}"))
        for name in ("gone", "plain")
    )
    with (
        endpoint(lambda request, number: verdict()) as server,
        LlmJudge(LlmClient(Endpoint(url=server.url, model="m"), SpendLimits(), path)) as judge,
    ):
        for each in (gone, plain):
            judge.ask_opinion(each).result()
    for name in ("gone", "plain"):
        found = forget(lake, name, judge_cache=path)
        assert (found.judge_answers, found.unclear_answers) == (1, 0)


def test_the_block_list_holds_no_id_and_no_more_than_that_it_is_one(lake: Lake) -> None:
    forget(lake, "gone", KEY)
    forget(lake, "plain")
    assert rows_of(lake, FORGOTTEN_TABLE, None) == sorted(
        [
            {
                "id_hash": make_alias("gone").removeprefix("forgotten:"),
                "project": "shop",
                "agent": "support",
            },
            {
                "id_hash": make_alias("plain").removeprefix("forgotten:"),
                "project": None,
                "agent": None,
            },
        ],
        key=lambda row: row["id_hash"],
    )


def test_a_session_that_a_model_was_only_shown_is_named_and_leaves_its_manifest(lake: Lake) -> None:
    row = {"row_id": "shown-only", "session_id": "shown-only", "content_sha256": "c" * 64}
    for asset, part in (("evaluation", "shown"), ("gguf_export", "measured")):
        build(lake, KEY, asset, {"adapter": "0" * 64, part: name_rows([row])}, {})
    assert [use.roles for use in session_lineage(lake, "shown-only").models] == [
        ["compared on"]
    ] * 2
    forget(lake, "shown-only")
    assert scan(lake, ['"shown-only"']) == {}


def test_a_remote_lake_forgets_too(tmp_path: Path, made: Path) -> None:
    from uuid import uuid4

    from upath import UPath

    root = UPath(f"memory://lake-{uuid4().hex}")
    for path in (made / "lake").rglob("*"):
        if path.is_file():
            (root / path.relative_to(made / "lake").as_posix()).write_bytes(path.read_bytes())
    lake = Lake(root, tmp_path / "cache")
    assert lake.latest("evaluation", KEY).path.is_relative_to(tmp_path / "cache")
    before = everything(lake, but="gone")
    _, measured = trained_and_measured(lake)
    assert (
        forget(lake, "gone").changes
        and everything(lake, but="gone") == before
        and scan(lake, ['"gone"']) == {}
    )
    forget(lake, measured)
    assert scan(lake, [measured]) == {} and lake.latest("evaluation", KEY)
    assert not any(
        measured.encode() in path.read_bytes()
        for path in (tmp_path / "cache").rglob("*")
        if path.is_file()
    )


IDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8)


@pytest.mark.slow
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), ids=st.lists(IDS, min_size=2, max_size=7, unique=True), openai=st.booleans())
def test_whatever_the_ids_nothing_of_a_forgotten_session_is_left_and_no_other_row_changes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, ids: list[str], openai: bool
) -> None:
    """Ids are any text: beginnings of each other, quotes, regular expressions, what stands between the parts of a row's id."""
    ids = [*ids, f"{ids[0]}#1", f"{ids[0]}|{ids[1]}", f"session:{ids[0]}"]
    ids = list(dict.fromkeys(ids))
    goods = data.draw(
        st.lists(st.sampled_from([True, True, False, None]), min_size=len(ids), max_size=len(ids))
    )
    parents = data.draw(
        st.lists(st.sampled_from([None, None, *ids]), min_size=len(ids), max_size=len(ids))
    )
    tasks = data.draw(
        st.lists(st.sampled_from([None, "a", "b", *ids[:2]]), min_size=len(ids), max_size=len(ids))
    )
    marks = [f"mark {hash_json([each, 'mark'])[:20]}" for each in ids]
    sessions = [conversation(*each) for each in zip(ids, marks, goods, parents, tasks, strict=True)]
    folder = tmp_path_factory.mktemp("any")
    lake = make_lake(folder, sessions, openai=openai)
    gone = data.draw(st.sampled_from(ids))
    before, others = (
        everything(lake, but=gone),
        [mark for each, mark in zip(ids, marks, strict=True) if each != gone],
    )
    there = {mark for found in scan(lake, others).values() for mark in found}
    forget(lake, gone)
    assert scan(lake, [marks[ids.index(gone)]]) == {}
    assert everything(lake, but=gone) == before
    assert {mark for found in scan(lake, others).values() for mark in found} == there
    assert not [
        row
        for row in session_lineage(lake, gone).rows
        if row.role in ("session", "chosen", "rejected")
    ]
    named = [row for name in ("sessions", "curated_sessions") for row in rows_of(lake, name)]
    assert not [row for row in named if gone in (row["parent_session_id"], row.get("duplicate_of"))]
    found = ingest(Store(sessions), KEY, OPTIONS, lake)
    assert (found.forgotten, found.table.rows) == (1, len(ids) - 1)
    shutil.rmtree(folder)


# From the shell, and in the graph


@pytest.fixture
def shell(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    for name, value in (
        ("AGENT_PIPELINE_LAKE", lake.root.path),
        ("AGENT_PIPELINE_CACHE", tmp_path / "cache"),
        ("DAGSTER_HOME", tmp_path),
    ):
        monkeypatch.setenv(name, str(value))
    return CliRunner()


@pytest.mark.slow
def test_the_shell_tells_lineage_asks_before_it_forgets_and_says_what_came_of_it(
    shell: CliRunner, lake: Lake
) -> None:
    make_lake(Path(lake.root.path).parent, SHOP, OTHER)
    told = shell.invoke(app, ["sessions", "show", "--lineage", "gone", "--json"])
    assert told.exit_code == 0 and json.loads(told.stdout)["rows"] == msgspec.to_builtins(
        session_lineage(lake, "gone").rows
    )
    assert "curated_sessions" in shell.invoke(app, ["sessions", "show", "--lineage", "gone"]).stdout
    assert shell.invoke(app, ["sessions", "show", "--lineage", "nobody"]).exit_code == 1
    adapter = lake.latest("sft_adapter", KEY)
    assert (
        "base model  base at r1" in shell.invoke(app, ["models", "show", str(adapter.path)]).stdout
    )
    assert (
        json.loads(shell.invoke(app, ["models", "show", adapter.identity, "--json"]).stdout)["rows"]
        == adapter.manifest["made_from"]["rows"]
    )
    asked = shell.invoke(app, ["forget", "gone"], input="n\n")
    assert asked.exit_code == 1 and "every partition (shop/billing, shop/support)" in asked.stdout
    assert scan(lake, ['"gone"']) and not BlockList.read(lake).entries
    told = shell.invoke(app, ["forget", "gone"], input="y\n")
    assert (
        told.exit_code == 0
        and "later runs in all partitions" in told.stdout
        and "twin has the same conversation" in told.stdout
    )
    assert scan(lake, ['"gone"']) == {}
    assert (
        "was forgotten in all partitions"
        in shell.invoke(app, ["sessions", "show", "--lineage", "gone"]).stdout
    )
    trained_on, _ = trained_and_measured(lake)
    told = shell.invoke(
        app, ["forget", trained_on, "--partition", "shop/support", "--yes", "--json"]
    )
    assert json.loads(told.stdout)["partitions"] == ["shop/support"]
    assert adapter.identity in {model["identity"] for model in json.loads(told.stdout)["models"]}


def test_control_characters_of_an_id_never_reach_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = "gone\x1b[2J\x07"
    lake = make_lake(tmp_path, [conversation(odd, "said oddly"), *SHOP[-10:]])
    for name, value in (
        ("AGENT_PIPELINE_LAKE", lake.root.path),
        ("AGENT_PIPELINE_CACHE", tmp_path / "cache"),
        ("DAGSTER_HOME", tmp_path),
    ):
        monkeypatch.setenv(name, str(value))
    for command in (
        ["sessions", "show", "--lineage", odd],
        ["forget", odd, "--yes"],
        ["sessions", "show", "--lineage", odd],
    ):
        told = CliRunner().invoke(app, command)
        assert (
            told.exit_code == 0
            and "gone\\x1b[2J\\x07" in told.stdout
            and "\x1b[2J" not in told.stdout
            and "\x07" not in told.stdout
        )
    refused = CliRunner().invoke(app, ["forget", f"{odd}?", "--yes"])
    assert isinstance(refused.exception, UnknownSessionError) and "\x1b" not in str(
        refused.exception
    )


def test_beside_a_run_the_shell_does_not_forget(shell: CliRunner, lake: Lake) -> None:
    with dg.DagsterInstance.get() as instance:
        instance.add_run(
            dg.DagsterRun(job_name="retrain", run_id="0" * 32, status=dg.DagsterRunStatus.STARTED)
        )
    refused = shell.invoke(app, ["forget", "gone", "--yes"])
    assert isinstance(refused.exception, DataError) and "A run is in progress (00000000" in str(
        refused.exception
    )
    assert not BlockList.read(lake).entries
    assert shell.invoke(app, ["forget", "gone", "--yes", "--force"]).exit_code == 0


def test_the_metadata_of_a_model_says_what_it_was_made_of_and_names_no_session(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", lake.root.path)
    artifact = lake.latest("gguf_export", KEY)

    @dg.asset(partitions_def=dg.StaticPartitionsDefinition([str(KEY)]))
    def gguf_export() -> Artifact:
        return artifact

    done = dg.materialize(
        [gguf_export], resources={"io_manager": ArtifactIOManager()}, partition_key=str(KEY)
    )
    told = dict(cells(done.asset_materializations_for_node("gguf_export")[0].metadata["made_of"]))
    made_from = artifact.manifest["made_from"]["adapter_made_from"]
    assert told["rows"] == told["sessions"] == str(len(made_from["sessions"]))
    assert (told["base_model"], told["base_revision"], told["tables.sft_dataset"]) == (
        "base",
        "r1",
        "1" * 64,
    )
    assert told["code.code_sha256"] == artifact.manifest["made_by"]["code_sha256"]
    assert not any(each in json.dumps(told) for each in made_from["sessions"])


@pytest.mark.slow
def test_the_next_run_of_the_graph_works_and_counts_what_was_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = PartitionKey("shop", "intern")
    monkeypatch.setenv("AGENT_PIPELINE_STORE", str(SAMPLE))
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", str(tmp_path / "lake"))
    lake, workspace = Lake(str(tmp_path / "lake")), Workspace()
    with dg.DagsterInstance.ephemeral() as instance:
        bench = Bench(SAMPLE, lake, instance, build_defs())
        assert bench.run(str(key), *DATA_ASSETS).success
        before = workspace.versions(workspace.open_store()).find_version(key)
        count = before.sessions
        pair = rows_of(lake, "preference_dataset", key)[0]
        for gone in (pair["session_id"], pair["rejected_session_id"]):
            assert scan(lake, [gone])
            forget(lake, gone)
            assert scan(lake, [gone]) == {}
        result = bench.run(str(key), *DATA_ASSETS)
        assert result.success
        said = metadata(result, "sessions")
        assert (said["sessions"], said["forgotten"], said["copied_from_the_last_table"]) == (
            count - 2,
            2,
            0,
        )
    after = workspace.versions(workspace.open_store()).find_version(key)
    assert (
        after.version != before.version and after.sessions == count - 2
    )  # the next night trains again
    assert scan(lake, [pair["session_id"], pair["rejected_session_id"]]) == {}
    found = {part.partition: part for store in discover(workspace.settings().stores, SOURCES, BlockList.read(lake)).stores for part in store.partitions}  # fmt: skip
    assert (found[str(key)].sessions, found[str(key)].forgotten) == (count, 2) and found[
        "office/rooms"
    ].forgotten == 0
