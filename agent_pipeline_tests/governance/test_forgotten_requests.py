"""The record of system prompts and tools after sessions of the training were forgotten."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.datasets.requests import (
    REQUESTS_FILE,
    Request,
    TrainedRequests,
    compare_requests,
    describe_requests,
    forget_rows,
    read_request,
)
from agent_pipeline.export import serving_folder
from agent_pipeline.governance.forgetting import forget_sessions
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.champions import promote, serve_champion, serving_difference
from agent_pipeline.promotion.request_changes import compare_models, read_trained_requests
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.datasets.test_requests import TOOLS, prompt, row, tool
from agent_pipeline_tests.export.test_request_changes import curate
from agent_pipeline_tests.lakes import artifact, put_rows

KEY = PartitionKey("shop", "support")
COUNT = 10


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"), tmp_path / "cache")


def name_customer(number: int, customer: str) -> dict:
    """A row whose system prompt names a customer."""
    named = row(number)
    named["messages"][0]["content"] += f" The customer is {customer}. Stay polite."
    return named


def put_tables(lake: Lake, rows: list[dict]) -> None:
    columns = {"task_key": "t", "split": "train", "trial": "0"}
    put_rows(lake, KEY, [each | columns | {"row_id": each["session_id"]} for each in rows])


def find_leaks(folder: Path, text: str) -> list[str]:
    """The names of the served files that show a text."""
    return sorted(path.name for path in folder.iterdir() if text.encode() in path.read_bytes())


def serve(lake: Lake, rows: list[dict], known: int = COUNT) -> Path:
    """Train on rows, of which the tables have the first `known`, and serve the champion."""
    put_tables(lake, rows[:known])
    session_ids = [each["session_id"] for each in rows]
    record = {REQUESTS_FILE: msgspec.json.encode(describe_requests(rows))}
    report = {"row_ids": session_ids}
    adapter = artifact(lake, "sft_adapter", KEY, {"sessions": session_ids}, record, report)
    files = {"Modelfile": "FROM ./model-f16.gguf\n", "model-f16.gguf": "m"}
    report = {"ollama": {"gguf": "model-f16.gguf", "num_ctx": 2048}}
    artifact(lake, "gguf_export", KEY, {"adapter": adapter.identity}, files, report)
    promote(lake, KEY)
    serve_champion(lake, KEY)
    return Path(lake.root.path) / "serving" / "shop" / "support"


def read_record(lake: Lake) -> TrainedRequests | None:
    return read_trained_requests([lake.latest("sft_adapter", KEY)])


def test_a_change_is_still_seen_after_a_session_was_forgotten(lake):
    """Without the record, the check would never see a change again."""
    serve(lake, [name_customer(number, f"Person{number}") for number in range(COUNT)])
    curate(lake, [30] * COUNT + [14] * COUNT)
    before = compare_models(lake, KEY)
    assert before[0].major_changes
    forget_sessions(lake, ["s003"])
    assert compare_models(lake, KEY) == before


def test_the_newest_prompt_is_forgotten_in_the_served_files_too(lake):
    folder = serve(lake, [name_customer(number, f"Person{number}") for number in range(COUNT)])
    assert "Person9" in (folder / "system_prompt.txt").read_text()
    old = read_record(lake)
    report = forget_sessions(lake, ["s009"])
    record = read_record(lake)
    assert "Person8" in (folder / "system_prompt.txt").read_text()
    assert json.loads((folder / "tools.json").read_text()) == TOOLS
    assert not [path for path in folder.iterdir() if b"Person9" in path.read_bytes()]
    assert b"Person9" not in msgspec.json.encode(record)
    assert [pattern.blocks for pattern in record.prompts] == [
        pattern.blocks for pattern in old.prompts
    ]
    assert (record.until, record.tool_sets, record.tools) == (old.until, old.tool_sets, old.tools)
    assert not serving_difference(lake, KEY)
    assert str(folder / "system_prompt.txt") in [change.path for change in report.changes]
    forget_sessions(lake, ["s009"])
    assert read_record(lake) == record


@pytest.mark.parametrize("killed_at", [REQUESTS_FILE, "system_prompt.txt"])
def test_a_killed_call_is_completed_by_the_next_one(lake, monkeypatch, killed_at):
    """The manifest is replaced before the record, and the record before the served files."""
    folder = serve(lake, [name_customer(number, f"Person{number}") for number in range(COUNT)])
    replace, write = Lake.replace, serving_folder.write_atomically

    def kill(path: object) -> None:
        if str(path).endswith(killed_at):
            raise KeyboardInterrupt

    def replace_or_die(self: Lake, path: object, content: object) -> None:
        kill(path)
        replace(self, path, content)

    def write_or_die(path: Path, content: bytes) -> None:
        kill(path)
        write(path, content)

    with monkeypatch.context() as patched:
        patched.setattr(Lake, "replace", replace_or_die)
        patched.setattr(serving_folder, "write_atomically", write_or_die)
        with pytest.raises(KeyboardInterrupt):
            forget_sessions(lake, ["s009"])
    assert "Person9" in (folder / "system_prompt.txt").read_text()
    forget_sessions(lake, ["s009"])
    assert "Person8" in read_record(lake).system_prompt
    assert "Person8" in (folder / "system_prompt.txt").read_text()
    assert not serving_difference(lake, KEY)


def test_a_killed_call_is_completed_after_the_tables_changed(lake, monkeypatch):
    """The record gets another checksum then, and the champion has to be served all the same."""
    rows = [name_customer(number, f"Person{number}") for number in range(COUNT)]
    folder, replace = serve(lake, rows), Lake.replace

    def replace_or_die(self: Lake, path: object, content: object) -> None:
        if str(path).endswith(REQUESTS_FILE):
            raise KeyboardInterrupt
        replace(self, path, content)

    with monkeypatch.context() as patched:
        patched.setattr(Lake, "replace", replace_or_die)
        with pytest.raises(KeyboardInterrupt):
            forget_sessions(lake, ["s009"])
    put_tables(lake, rows[:8])
    forget_sessions(lake, ["s009"])
    assert lake.latest("sft_adapter", KEY)
    serve_champion(lake, KEY)
    assert not find_leaks(folder, "Person9")


@pytest.mark.parametrize(
    "damage", ["model-f16.gguf", "Modelfile", "served.json", "no served.json", "adapter"]
)
def test_served_texts_are_deleted_if_the_export_cannot_be_read(lake, damage):
    """Everything else was removed before, and another call would fail in the same way."""
    rows = [name_customer(number, f"Person{number}") for number in range(COUNT)]
    folder, export = serve(lake, rows), lake.latest("gguf_export", KEY).path
    if damage == "model-f16.gguf":
        (export / damage).unlink()
    elif damage == "Modelfile":
        (export / damage).write_text("another size")
    elif damage == "served.json":
        (folder / damage).write_text("{")
    elif damage == "no served.json":
        (folder / "served.json").unlink()
    else:
        (lake.latest("sft_adapter", KEY).path / REQUESTS_FILE).write_text("{}")
    report = forget_sessions(lake, ["s009"])
    assert not find_leaks(folder, "Person9")
    assert str(folder / "system_prompt.txt") in [change.path for change in report.changes]
    assert bool(report.messages) == (damage != "adapter")
    assert lake.latest("sft_adapter", KEY)
    assert not forget_sessions(lake, ["s009"]).messages


def test_the_line_system_is_deleted_if_the_export_cannot_be_read(lake):
    """It is the last value of the Modelfile, and may have several lines."""
    rows = [row(number) for number in range(COUNT)]
    for each in rows:
        each["messages"][0]["content"] += "\nSYSTEM of Person9."
    folder = serve(lake, rows)
    assert find_leaks(folder, "Person9") == ["Modelfile", "system_prompt.txt"]
    (lake.latest("gguf_export", KEY).path / "model-f16.gguf").unlink()
    forget_sessions(lake, ["s009"])
    assert not find_leaks(folder, "Person9")
    assert (folder / "Modelfile").read_text().startswith("FROM ./model-f16-")
    assert "SYSTEM" not in (folder / "Modelfile").read_text()


def test_the_texts_of_the_export_in_the_folder_are_written_again(lake):
    """A promotion that was killed before it served leaves the earlier export in the folder."""
    folder = serve(lake, [name_customer(number, f"Person{number}") for number in range(COUNT)])
    files = {"Modelfile": "FROM ./model-f16.gguf\n", "model-f16.gguf": "n"}
    report = {"ollama": {"gguf": "model-f16.gguf", "num_ctx": 2048}}
    adapter = lake.latest("sft_adapter", KEY).identity
    artifact(lake, "gguf_export", KEY, {"adapter": adapter, "again": True}, files, report)
    promote(lake, KEY)
    assert not forget_sessions(lake, ["s009"]).messages
    assert not find_leaks(folder, "Person9")
    assert "Person8" in (folder / "system_prompt.txt").read_text()


def test_no_change_is_seen_if_no_value_of_a_part_is_known(lake):
    """A rule that was edited once has two values, which the tables may not have any more."""
    rows = [row(number, rule=30 if number < 5 else 14) for number in range(COUNT)]
    serve(lake, rows, known=0)
    curate(lake, [14] * 2 * COUNT)
    assert not compare_models(lake, KEY)[0].major_changes
    forget_sessions(lake, ["s003"])
    assert not compare_models(lake, KEY)[0].major_changes


def test_a_prompt_that_all_sessions_share_stays(lake):
    folder = serve(lake, [row(number) for number in range(COUNT)])
    record, modelfile = read_record(lake), (folder / "Modelfile").read_text()
    forget_sessions(lake, ["s009", "s001"])
    assert read_record(lake) == record and (folder / "Modelfile").read_text() == modelfile
    assert prompt(0) in modelfile


def test_values_are_blank_if_no_other_row_is_known(lake):
    """The rows of an old champion may not be in the tables any more."""
    rows = [name_customer(number, f"Person{number}") for number in range(COUNT)]
    folder = serve(lake, rows, known=0)
    forget_sessions(lake, ["s009"])
    text = (folder / "system_prompt.txt").read_text()
    assert text == rows[0]["messages"][0]["content"].replace("Person0", "…")
    (pattern,) = read_record(lake).prompts
    assert [part.values for part in pattern.parts] == [[]]


def test_a_model_of_forgotten_sessions_alone_has_no_record(lake):
    """The check warns, because nothing can be compared."""
    folder = serve(lake, [row(number) for number in range(COUNT)])
    forget_sessions(lake, [f"s{number:03}" for number in range(COUNT)])
    adapter = lake.latest("sft_adapter", KEY)
    assert REQUESTS_FILE not in adapter.manifest["files"] and read_record(lake) is None
    assert not (folder / "system_prompt.txt").exists()
    assert "SYSTEM" not in (folder / "Modelfile").read_text()
    assert not serving_difference(lake, KEY)
    assert not compare_models(lake, KEY)[0].is_recorded


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", " Today is {}.", " You help {} of {}.", " {} wrote to us."]),
            st.sampled_from([30, 14]),
            st.booleans(),
            st.booleans(),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_remaining_requests_fit_and_forgotten_values_are_gone(sessions):
    rows, remaining, secrets = [], [], []
    for number, (form, rule, has_own_tool, is_forgotten) in enumerate(sessions):
        secret = f"Secret{number}x"
        tools = [*TOOLS, tool(f"tool_of_{secret}")] if has_own_tool else TOOLS
        session = row(number, tools=tools, rule=rule)
        session["messages"][0]["content"] += form.format(secret, secret)
        rows.append(session)
        if is_forgotten:
            secrets.append(secret)
        else:
            remaining.append(read_request(session["messages"], tools))
    kept = forget_rows(describe_requests(rows), len(secrets), remaining)
    assert (kept is None) == (not remaining)
    if kept is not None:
        text = msgspec.json.encode(kept).decode()
        assert not [secret for secret in secrets if secret in text]
        for request in remaining:
            assert compare_requests(kept, [Request(*request)] * 5) == []
        assert kept.system_prompt in [request.prompt for request in remaining]
