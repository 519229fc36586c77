"""What a user sets about sessions, through Dagster and through the command: repair, and a review from the sample to the next verdict."""

import csv
import io
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_pipeline.cli.app import app
from agent_pipeline.keys import PartitionKey
from agent_pipeline_tests.defs.conftest import Bench

KEY = PartitionKey("shop", "support")


@pytest.mark.parametrize(
    ("repair", "says"),
    [
        ({"orphan_outputs": "repair"}, "repair has no kind 'orphan_outputs': did you mean orphan_output?"),
        ({"nonsense": "repair"}, "repair has no kind 'nonsense': choose one of "),
        ({"orphan_output": "mend"}, "repair cannot treat orphan_output by 'mend': choose one of drop_session, drop_turn, repair."),
        ({"invalid_item": "repair"}, "repair cannot treat invalid_item by 'repair': choose one of drop_session, keep."),
    ],
)
def test_a_wrong_repair_is_one_sentence_and_nothing_is_written(bench: Bench, repair, says) -> None:
    result = bench.run("shop/support", "sessions", config={"sessions": {"repair": repair}})
    sentence = bench.sentence(result)
    assert not result.success and sentence.startswith(says) and "\n" not in sentence
    assert not bench.lake.has("sessions", KEY)


def test_a_review_goes_from_the_command_through_a_spreadsheet_into_the_next_run(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))

    def command(*words: str) -> str:
        done = CliRunner().invoke(app, list(words), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    def verdicts() -> dict[str, tuple[str | None, str | None, str | None]]:
        rows = bench.lake.open("judged_sessions", KEY).read(["session_id", "verdict", "verdict_by", "verdict_reasons"]).to_pylist()
        return {row["session_id"]: (row["verdict"], row["verdict_by"], row["verdict_reasons"]) for row in rows}

    assert bench.run("shop/support", "sessions", "judged_sessions").success
    before = verdicts()
    page = tmp_path / "labels" / "review.csv"
    page.parent.mkdir()
    command("review", "shop/support", "--sample", "3", "--out", str(page))
    rows = list(csv.DictReader(io.StringIO(page.read_text(encoding="utf-8-sig"), newline="")))
    for row, judgment in zip(rows, ("acceptable", "unacceptable", ""), strict=True):
        row |= {"judgment": judgment, "reason": f"seen; {judgment}, by Ann" if judgment else ""}
    with page.open("w", encoding="utf-16", newline="") as file:  # as a spreadsheet saves it
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t")
        writer.writeheader()
        writer.writerows(rows)
    monkeypatch.setenv("AGENT_PIPELINE_LABELS", str(page.parent))
    command("materialize", "shop/support", "--select", "judged_sessions or curated_sessions")
    changed = {session: verdict for session, verdict in verdicts().items() if verdict != before[session]}
    good, bad, skipped = (row["session_id"] for row in rows)
    assert changed == {
        good: ("acceptable", "label", "label: seen; acceptable, by Ann"),
        bad: ("unacceptable", "label", "label: seen; unacceptable, by Ann"),
    }
    kept = bench.lake.open("curated_sessions", KEY).read(["session_id", "kept"]).to_pylist()
    assert {row["session_id"]: row["kept"] for row in kept}.items() >= {good: True, bad: False, skipped: False}.items()
