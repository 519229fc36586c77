"""Whether the newest sessions ask what the champion and the latest model were trained for."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from agent_pipeline.datasets.requests import REQUESTS_FILE, describe_requests
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.champions import promote
from agent_pipeline.promotion.request_changes import (
    MOST_NEWEST,
    compare_latest_adapter,
    compare_models,
    describe_changes,
    read_newest_requests,
)
from agent_pipeline.selection.training_rule import (
    TRAINED,
    TRAINED_TABLE,
    TrainingRule,
    Waiting,
    stage_trained_sessions,
)
from agent_pipeline.sessions.session import Session
from agent_pipeline.sessions.tables import CURATED, make_session_row, to_batches
from agent_pipeline.storage.lake import Artifact, Lake
from agent_pipeline_tests.datasets.test_requests import BEGAN, TOOLS, prompt, row
from agent_pipeline_tests.lakes import artifact

KEY = PartitionKey("shop", "support")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"), tmp_path / "cache")


def curate(lake: Lake, rules: list[int], **values: object) -> None:
    """Sessions of the days from BEGAN, each with its rule in the system prompt."""
    rows = []
    for number, rule in enumerate(rules):
        session = Session(
            session_id=f"s{number:03}",
            project=KEY.project,
            agent=KEY.agent,
            source="test",
            created_at=BEGAN + timedelta(days=number),
            tools=TOOLS,
            messages=[{"role": "system", "content": prompt(number, rule)}],
        )
        curated = {"kept": True, "use": "positive", "verdict": "acceptable", "missed_measures": []}
        rows.append(dict.fromkeys(CURATED.names) | make_session_row(session) | curated | values)
    lake.stage("curated_sessions", KEY, to_batches(rows, CURATED), CURATED).commit()


def train(lake: Lake, rules: list[int], recorded: bool = True) -> Artifact:
    """An adapter that was trained on sessions with these rules."""
    requests = describe_requests([row(number, rule=rule) for number, rule in enumerate(rules)])
    files = {REQUESTS_FILE: msgspec.json.encode(requests)} if recorded else {"weights": "w"}
    return artifact(lake, "sft_adapter", KEY, {"rules": rules, "recorded": recorded}, files)


def champion(lake: Lake, adapter: Artifact) -> None:
    files = {"Modelfile": "FROM ./model-f16.gguf\n", "model-f16.gguf": "m"}
    report = {"ollama": {"gguf": "model-f16.gguf", "num_ctx": 2048}}
    artifact(lake, "gguf_export", KEY, {"adapter": adapter.identity}, files, report)
    promote(lake, KEY)


def test_the_champion_and_a_newer_model_are_compared(lake):
    champion(lake, train(lake, [30] * 10))
    curate(lake, [30] * 10 + [14] * 10)
    (old,) = compare_models(lake, KEY)
    assert (old.model, old.sessions, len(old.major_changes)) == ("champion", 10, 1)
    latest = compare_latest_adapter(lake, KEY)
    assert latest and latest.major_changes == old.changes
    train(lake, [30] * 10 + [14] * 5)
    old, new = compare_models(lake, KEY)
    assert old.major_changes and (new.model, new.sessions, new.changes) == ("candidate", 5, [])
    assert compare_latest_adapter(lake, KEY) == new
    assert describe_changes(lake, KEY) == [
        "Since the champion was trained: the system prompt changed (10 sessions), of the 10 newest."
    ]


def test_only_the_newest_sessions_are_compared(lake):
    """A change of yesterday is a small share of all sessions since training."""
    train(lake, [30] * 10)
    curate(lake, [30] * 200 + [14] * 12)
    (comparison,) = compare_models(lake, KEY)
    assert comparison.sessions == MOST_NEWEST and comparison.changes[0].sessions == 12
    newest = read_newest_requests(lake, KEY, BEGAN, 2)
    assert [request.prompt for request in newest] == [prompt(210, 14), prompt(211, 14)]


def test_sessions_that_are_broken_do_not_count(lake):
    train(lake, [30] * 10)
    curate(lake, [14] * 20, drop_reason="broken")
    (comparison,) = compare_models(lake, KEY)
    assert not comparison.changes and "no session is newer" in comparison.problem


@pytest.mark.parametrize(("trained", "problem"), [(True, "no session"), (False, "does not record")])
def test_what_cannot_be_compared_is_said_and_is_no_change(lake, trained, problem):
    """Without a record, no change is ever noticed, so the status names the model."""
    champion(lake, train(lake, [30] * 10, recorded=trained))
    (comparison,) = compare_models(lake, KEY)
    assert problem in str(comparison) and not comparison.changes
    assert comparison.is_recorded == trained
    assert [problem in sentence for sentence in describe_changes(lake, KEY)] == [True] * (
        not trained
    )


def test_without_a_model_there_is_nothing_to_compare(lake):
    curate(lake, [30])
    assert compare_models(lake, KEY) == [] and compare_latest_adapter(lake, KEY) is None


@pytest.mark.parametrize(("new", "changes", "trains"), [(1, ["x"], True), (1, [], False)])
def test_one_new_session_is_enough_if_the_requests_changed(lake, new, changes, trains):
    curate(lake, [30] * 5)
    rule = TrainingRule({"positive"}, 0)
    staged = stage_trained_sessions(lake, KEY, rule)
    assert not isinstance(staged, Waiting)
    staged.commit()
    assert lake.open(TRAINED_TABLE, KEY, TRAINED).metadata.num_rows == 5
    waits = TrainingRule({"positive"}, 20, changed_requests=changes)
    assert isinstance(stage_trained_sessions(lake, KEY, waits), Waiting), (
        "nothing new to learn from"
    )
    curate(lake, [30] * (5 + new))
    assert isinstance(stage_trained_sessions(lake, KEY, waits), Waiting) != trains


def test_a_time_zone_is_no_new_session(lake):
    curate(lake, [30] * 3)
    assert read_newest_requests(lake, KEY, datetime(2026, 1, 3, tzinfo=UTC)) == []
