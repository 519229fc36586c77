"""Rows of sessions that nobody verified are marked, and counted where a model is trained on them."""

from collections import Counter
from pathlib import Path

import pytest

from agent_pipeline.datasets.build import build_kto, build_preferences, build_sft, build_sharegpt
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.datasets.verdicts import (
    count_row_verdicts,
    count_verdicts,
    describe_unverified,
    describe_verdicts,
)
from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.judging import JudgingRun, Label, Labels
from agent_pipeline.judging.curation import CurationBounds
from agent_pipeline.judging.options import JudgingOptions
from agent_pipeline.judging.tables import curate_sessions, judge_sessions
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.selection.training_rule import compare_sessions, read_judged_sessions
from agent_pipeline.sessions.tables import SESSIONS, make_session_row, to_batches
from agent_pipeline.sources import open_source
from agent_pipeline.storage.lake import Lake

AIRLINE = PartitionKey("tau", "airline")
OPTIONS = ReadingOptions(
    task_pattern=r"task(\d+)-trial\d+", redaction=RedactionOptions(enabled=False)
)
REQUIRED = ["ended_with_answer", "all_calls_answered"]


@pytest.fixture(scope="module")
def airline(
    real_traces: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Lake, dict[str, str | None]]:
    """A lake with real sessions whose verdicts were taken away, and these verdicts by session."""
    lake = Lake(str(tmp_path_factory.mktemp("airline")))
    sessions = list(
        read_sessions(open_source(real_traces / "stores" / "omniagents_home"), AIRLINE, OPTIONS)
    )
    verdicts = {session.session_id: session.judgment for session in sessions}
    for session in sessions:
        session.judgment = session.score = None
    lake.stage(
        "sessions", AIRLINE, to_batches(map(make_session_row, sessions), SESSIONS), SESSIONS
    ).commit()
    return lake, verdicts


def curated(lake: Lake, **options: object) -> list[dict]:
    judge_sessions(lake, AIRLINE, JudgingRun.from_options(JudgingOptions(**options))).commit()
    table = curate_sessions(lake, AIRLINE, REQUIRED, CurationBounds(), []).table
    table.commit()
    return (
        lake.open("curated_sessions", AIRLINE)
        .read(["session_id", "use", "verdict", "verdict_by"])
        .to_pylist()
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"when_unjudged": "train_unverified"},
        {"when_unjudged": "acceptable"},
        {"decided_by": ["measures"]},
        {"decided_by": ["label", "judgment", "measures"], "when_unjudged": "train_unverified"},
    ],
)
def test_no_failure_is_kept_unmarked_and_no_success_is_a_bad_example(airline, options):
    """Of 100 real sessions 64 are failures, and measures see nothing wrong with any of them."""
    lake, verdicts = airline
    rows = curated(lake, **options)
    failures = {name for name, verdict in verdicts.items() if verdict == "unacceptable"}
    kept = [row for row in rows if row["use"] == "positive" and row["session_id"] in failures]
    unmarked = [row for row in kept if row["verdict_by"] != "unverified"]
    assert len(failures) == 64
    bad = [row for row in rows if row["use"] == "negative"]
    assert not unmarked
    assert not bad


def test_rows_of_unverified_sessions_say_so_in_every_data_set(airline):
    lake, _ = airline
    kept = [
        row for row in curated(lake, when_unjudged="train_unverified") if row["use"] == "positive"
    ]
    built = build_sft(lake, AIRLINE, SplitSizes())
    assert len(kept) > 60
    training, heldout = (
        lake.open(name, AIRLINE).read(["verdict_by"])["verdict_by"].to_pylist()
        for name in ("sft_dataset", "heldout_dataset")
    )
    assert training + heldout == ["unverified"] * len(kept)
    rows = len(training)
    assert built.verdicts == {"verdicts": rows, "verified": 0, "by": {"unverified": rows}}
    build_preferences(lake, AIRLINE, SplitSizes())
    kto = build_kto(lake, AIRLINE, SplitSizes())
    assert kto.verdicts["verified"] == 0 < kto.verdicts["verdicts"]
    shared = build_sharegpt(lake, AIRLINE)
    assert shared.verdicts["verified"] == 0 < shared.verdicts["by"]["unverified"]


def test_verdicts_are_counted_by_who_gave_them():
    rows = [
        {"verdict_by": "label"},
        {"verdict_by": "unverified", "rejected_verdict_by": "score"},
        {"verdict_by": "measures"},
        {},
    ]
    counts = count_row_verdicts(rows)
    assert counts == {
        "verdicts": 5,
        "verified": 2,
        "by": {"label": 1, "measures": 1, "score": 1, "unknown": 1, "unverified": 1},
    }
    assert count_verdicts(Counter(label=1), counts)["verified"] == 3
    assert describe_verdicts(counts).startswith("2 of 5 verdicts")


def test_only_unverified_rows_change_the_identity_of_a_model():
    """The same rows with other verdicts are trained again, so that the report's counts stay true."""
    assert describe_unverified(count_verdicts({"score": 3})) == {}
    assert describe_unverified(
        count_verdicts({"score": 3, "unverified": 1})
    ) != describe_unverified(count_verdicts({"score": 2, "unverified": 2}))


def test_a_session_that_somebody_verifies_is_news_though_its_verdict_stays(airline):
    """Otherwise no night would train again, and the report would go on to say "0 of N verdicts"."""
    lake, _ = airline
    curated(lake, when_unjudged="train_unverified")
    before = read_judged_sessions(lake, AIRLINE)
    named = before["session_id"].to_pylist()[:3]
    judge_sessions(
        lake,
        AIRLINE,
        JudgingRun.from_options(JudgingOptions(when_unjudged="train_unverified"), labelled(named)),
    ).commit()
    curate_sessions(lake, AIRLINE, REQUIRED, CurationBounds(), []).table.commit()
    found = compare_sessions(before, read_judged_sessions(lake, AIRLINE), ["positive"])
    assert found.verdicts == 3


def labelled(names: list[str]) -> Labels:
    return Labels(by_id={name: Label("acceptable") for name in names})
