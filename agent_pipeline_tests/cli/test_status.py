"""`agent-pipeline status`: readable at 80 columns, and honest about agents that were never read."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from agent_pipeline.cli.app import app
from agent_pipeline.cli.status import choose_next_step, describe_status
from agent_pipeline.governance.agent_status import AgentStatus, NightStatus, Status
from agent_pipeline.governance.model_list import ModelSummary

TODAY = datetime(2026, 11, 27, 9, tzinfo=UTC)
NIGHT = NightStatus(begins="2026-11-28T02:00:00+00:00", is_on=True, note="")
MODEL = ModelSummary(
    partition="shop/support",
    champion="a" * 64,
    champion_since="2026-11-20T02:00:00+00:00",
    latest="b" * 64,
    decision="promote",
    reason="the new model is better: the p-value is 0.001, and at most 0.05 is allowed",
    waits=True,
    verdicts=900,
    verified=800,
    moved="latest",
    moved_at="2026-11-27T02:00:00+00:00",
)
READ = AgentStatus(
    partition="shop/support",
    was_read=True,
    sessions=1204,
    kept=890,
    dropped={"unjudged": 200, "unacceptable": 114},
    verdicts={"acceptable": 890, "unacceptable": 114, "none": 200},
    rows={"train": 700, "test": 190},
    pairs=12,
    trained_at="2026-11-27T01:30:00+00:00",
    training="sft: loss 1.204 → 0.411 over 350 steps, 700 of 700 rows",
    model=MODEL,
    waits=["bbbb can be promoted: look at it."],
    next_step="report shop/support",
)
UNREAD = AgentStatus(
    partition="shop/other",
    was_read=False,
    sessions=0,
    kept=0,
    dropped={},
    verdicts={},
    rows={},
    pairs=0,
    trained_at=None,
    training="",
    model=None,
    waits=[],
    next_step="materialize shop/other --select '+sft_dataset'",
)


def screen(*agents: AgentStatus, night: NightStatus = NIGHT, width: int = 80) -> str:
    status = Status("lake", list(agents), night)
    return "\n".join(describe_status(status, width, TODAY))


def test_agent_with_a_champion() -> None:
    text = screen(READ)
    for fact in (
        "1,204, 890 of them kept; dropped: 200 unjudged, 114 unacceptable",
        "700 train, 190 test; 12 preference pairs",
        "890 acceptable, 114 unacceptable, 200 none",
        "2026-11-27 01:30 (7 hours ago)",
        "promote: the new model is better",
        "aaaaaaaaaaaaaaaa, since 2026-11-20 02:00 (7 days ago)",
        "for you     bbbb can be promoted",
        "next night  2026-11-28 02:00 UTC (in 17 hours)",
    ):
        assert fact in text, text


def test_agent_that_was_never_read_has_no_zeros() -> None:
    """0 sessions would say that the store is empty."""
    text = screen(UNREAD)
    assert "not read    shop/other" in text and "The lake is empty" in text
    assert "0" not in text.partition("next night")[0]
    assert "The lake is empty" not in screen(UNREAD, READ)


def test_many_unread_agents_are_one_line() -> None:
    """85 agents filled 255 lines that said nothing."""
    unread = [msgspec.structs.replace(UNREAD, partition=f"a/{n}") for n in range(85)]
    text = screen(READ, *unread, width=100)
    assert "a/4 and 80 other agents" in text and len(text.splitlines()) < 20


@given(
    names=st.lists(st.text(min_size=1, max_size=150), min_size=1, max_size=3),
    reason=st.text(max_size=300),
    width=st.integers(40, 120),
)
def test_no_line_is_wider_than_the_screen(names: list[str], reason: str, width: int) -> None:
    agent = msgspec.structs.replace(
        READ,
        partition=names[0],
        dropped=dict.fromkeys(names, 10**9),
        waits=names,
        training=reason,
        model=msgspec.structs.replace(MODEL, reason=reason),
    )
    text = screen(
        agent, UNREAD, night=NightStatus(begins=None, is_on=None, note=reason), width=width
    )
    assert max(map(len, text.split("\n"))) <= width


def test_next_step_is_of_the_agent_that_waits_for_a_person() -> None:
    untrained = msgspec.structs.replace(READ, model=None, next_step="materialize shop/support")
    for agents, expected in (
        ([UNREAD, READ], "report shop/support"),
        ([UNREAD, untrained], "materialize shop/support"),
        ([UNREAD], UNREAD.next_step),
        ([], "discover"),
    ):
        assert choose_next_step(Status("lake", agents, NIGHT)) == expected


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    session: dict[str, Any] = {"session_id": "s", "project": "shop", "agent": "support"}
    session["messages"] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
    ]
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.jsonl").write_text(json.dumps(session) + "\n", encoding="utf-8")
    (tmp_path / "pipeline.toml").write_text('store = "logs"\nlake = "lake"\n', encoding="utf-8")
    return tmp_path


def test_empty_lake_says_what_to_do_first_and_creates_nothing(project: Path) -> None:
    done = CliRunner().invoke(app, ["status"], catch_exceptions=False)
    assert "The lake is empty" in done.stdout and "switched off" in done.stdout
    assert "Next: agent-pipeline materialize shop/support" in done.stderr
    assert not (project / "home").exists() and not (project / "lake").exists()
    found = json.loads(CliRunner().invoke(app, ["status", "--json"]).stdout)
    assert [agent["was_read"] for agent in found["agents"]] == [False]


def test_wrong_schedule_is_a_line_and_no_crash(project: Path) -> None:
    with (project / "pipeline.toml").open("a", encoding="utf-8") as file:
        file.write('[night]\ncron = "at two"\n')
    done = CliRunner().invoke(app, ["status"], catch_exceptions=False)
    assert done.exit_code == 0 and "at two" in done.stdout
