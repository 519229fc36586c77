"""Judging through Dagster: labels that join the next run, the language model's spend, the review of a sample."""

import csv
import io
import json

import pytest
from typer.testing import CliRunner

from agent_pipeline.cli.app import app
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.keys import PartitionKey
from agent_pipeline_tests.defs.conftest import Bench, cells
from agent_pipeline_tests.defs.conftest import metadata as said_of
from agent_pipeline_tests.judging.endpoint import endpoint, verdict

KEY = PartitionKey("shop", "intern")


def judged(bench: Bench, **config) -> tuple[list[dict], dict]:
    result = bench.run(
        "shop/intern", "sessions", "judged_sessions", config={"judged_sessions": config}
    )
    assert result.success, bench.sentence(result)
    columns = [
        "session_id",
        "verdict",
        "verdict_by",
        "verdict_reasons",
        "measures",
        "opinions",
        "archived",
    ]
    return bench.lake.open("judged_sessions", KEY).read(columns).to_pylist(), said_of(
        result, "judged_sessions"
    )


def unjudged(rows: list[dict]) -> list[str]:
    return [row["session_id"] for row in rows if row["verdict"] is None and not row["archived"]]


def test_labels_decide_join_the_next_run_and_make_the_agent_new(
    bench: Bench, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, other = Workspace(), PartitionKey("office", "rooms")
    source = workspace.open_store()
    versions, signature = workspace.versions(source), workspace.store_signature(source)
    before, before_other = versions.find_version(KEY), versions.find_version(other)
    rows, _ = judged(bench)
    missing, said = unjudged(rows)[0], next(row for row in rows if row["verdict"] == "acceptable")
    labels = tmp_path / "labels.csv"
    labels.write_text(
        f"session_id,judgment,reason\n{missing},acceptable,well done\n{said['session_id']},unacceptable,it lied\nnobody,acceptable,\n"
    )
    monkeypatch.setenv("AGENT_PIPELINE_LABELS", str(labels))
    after = workspace.versions(source).find_version(KEY)
    assert after.version != before.version and after.sessions == before.sessions
    assert workspace.store_signature(source) != signature
    assert workspace.versions(source).find_version(other).version == before_other.version
    rows, metadata = judged(bench)
    found = {
        row["session_id"]: (row["verdict"], row["verdict_by"], row["verdict_reasons"])
        for row in rows
    }
    assert found[missing] == ("acceptable", "label", "label: well done")
    assert found[said["session_id"]] == ("unacceptable", "label", "label: it lied")
    assert ("1 labels are for sessions that this agent does not have ('nobody')") in metadata[
        "labels"
    ]
    assert "acceptable by label" in dict(cells(metadata["verdicts"]))
    assert "ended_with_answer" in [row[0] for row in cells(metadata["agreement"])]
    labels.write_text("session_id,judgment\nnobody,acceptable\n")
    assert (
        workspace.versions(source).find_version(KEY).version == before.version
    )  # a label of no session of this agent's is nothing new to it


def test_a_label_file_that_is_gone_is_one_sentence_not_a_night_without_labels(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_PIPELINE_LABELS", "nowhere.csv")
    result = bench.run("shop/intern", "sessions", "judged_sessions")
    assert not result.success and "nowhere.csv does not exist" in bench.sentence(result)


def test_the_language_model_judges_what_people_did_not_and_its_spend_is_shown(
    bench: Bench, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_PIPELINE_CACHE", str(tmp_path / "cache"))
    rows, metadata = judged(bench)
    assert "llm" not in metadata
    open_before = unjudged(rows)
    with endpoint(lambda request, number: verdict("unacceptable", "rude")) as server:
        monkeypatch.setenv("AGENT_PIPELINE_JUDGE__ENDPOINT", server.url)
        monkeypatch.setenv("AGENT_PIPELINE_JUDGE__MODEL", "m")
        monkeypatch.setenv("AGENT_PIPELINE_JUDGE__LEAST_PRECISION", "0")
        config = {"decided_by": ["label", "judgment", "llm"]}
        rows, metadata = judged(bench, **config, llm_max_requests=2)
        assert (
            len(server.requests) == 2 == metadata["llm_requests"] and metadata["llm_tokens"] == 220
        )
        assert "the spend limit was reached" in str(
            cells(metadata["llm"])
        ) and "unacceptable by llm" in dict(cells(metadata["verdicts"]))
        assert len(unjudged(rows)) == len(open_before) - 2 >= metadata["not_judged_yet"] > 0
        rows, metadata = judged(bench, **config)
        by_model = [row for row in rows if row["verdict_by"] == "llm"]
        assert (
            "cached" in str(cells(metadata["llm"]))
            and metadata["not_judged_yet"] == 0
            and {row["verdict_reasons"] for row in by_model} == {"llm: rude"}
        )
        assert {row["session_id"] for row in by_model} <= set(open_before) and len(by_model) > 2


def test_a_review_that_was_filled_in_joins_the_next_run(
    bench: Bench, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "labels" / "review.csv"
    out.parent.mkdir()
    rows, _ = judged(bench)
    done = CliRunner().invoke(
        app,
        ["label", "export", "shop/intern", "--sample", "4", "--seed", "3", "--out", str(out)],
        catch_exceptions=False,
    )
    assert (
        done.exit_code == 0
        and "4 sessions of shop/intern are in" in done.output
        and "unjudged" in done.output
    )
    filled = list(csv.DictReader(io.StringIO(out.read_text(encoding="utf-8-sig"), newline="")))
    assert {each["session_id"] for each in filled if each["why"] != "judges disagree"} <= set(
        unjudged(rows)
    ) and "CALL: " in "".join(each["conversation"] for each in filled)
    out.with_name("filled.jsonl").write_text(
        json.dumps(filled[0] | {"judgment": "acceptable", "reason": "I like it"})
    )
    monkeypatch.setenv("AGENT_PIPELINE_LABELS", str(out.parent))
    rows, _ = judged(bench)
    assert [row["session_id"] for row in rows if row["verdict_by"] == "label"] == [
        filled[0]["session_id"]
    ]


def test_a_judge_is_trusted_after_labels_and_not_before(
    bench: Bench, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without labels its verdicts are unverified; with labels of a random sample they count."""
    monkeypatch.setenv("AGENT_PIPELINE_CACHE", str(tmp_path / "cache"))
    labels = tmp_path / "labels"
    labels.mkdir()
    config = {"decided_by": ["label", "judgment", "llm"]}
    with endpoint(lambda request, number: verdict("acceptable", "kind")) as server:
        monkeypatch.setenv("AGENT_PIPELINE_JUDGE__ENDPOINT", server.url)
        monkeypatch.setenv("AGENT_PIPELINE_JUDGE__MODEL", "m")
        monkeypatch.setenv("AGENT_PIPELINE_JUDGE__LEAST_PRECISION", "0.4")
        rows, metadata = judged(bench, **config)
        by_model = [row for row in rows if row["verdict_by"] == "unverified"]
        assert len(by_model) >= 3
        assert not [row for row in rows if row["verdict_by"] == "llm"]
        assert cells(metadata["judge_checks"]) == [["llm", "no", "0", "0", "0.00 to 1.00", "2"]]
        status = _invoke(monkeypatch, config, "status")
        assert "llm is not trusted" in status and "label 2 more" in status
        paid = len(server.requests)

        def review(judgment: str, name: str) -> None:
            out = labels / name
            _invoke(
                monkeypatch,
                config,
                "label",
                "export",
                "shop/intern",
                "--sample",
                "4",
                "--out",
                str(out),
            )
            lines = out.read_text(encoding="utf-8").split("\n")
            filled = [json.loads(line) for line in lines if line]
            assert sum(bool(row["probability"]) for row in filled) >= 3
            out.write_text(
                "".join(json.dumps(row | {"judgment": judgment}) + "\n" for row in filled),
            )

        review("acceptable", "first.jsonl")
        monkeypatch.setenv("AGENT_PIPELINE_LABELS", str(labels))
        rows, metadata = judged(bench, **config)
        ((_, trusted, count, good, *_),) = cells(metadata["judge_checks"])
        assert trusted == "yes" and count == good and int(count) >= 3
        assert len([row for row in rows if row["verdict_by"] == "llm"]) >= 1
        assert not [row for row in rows if row["verdict_by"] == "unverified"]
        assert len(server.requests) == paid, "the answers about labelled sessions were cached"
        (labels / "first.jsonl").write_text(
            (labels / "first.jsonl").read_text().replace('"judgment": "acc', '"judgment": "unacc')
        )
        rows, metadata = judged(bench, **config)
        ((_, trusted, count, good, _, needed),) = cells(metadata["judge_checks"])
        assert (trusted, good, needed) == ("no", "0", "–")
        assert not [row for row in rows if row["verdict_by"] == "llm"]


def _invoke(monkeypatch: pytest.MonkeyPatch, config: dict, *arguments: str) -> str:
    """Run a command with the settings of `judged_sessions`, and return its output."""
    monkeypatch.setenv(
        "AGENT_PIPELINE_ASSETS__JUDGED_SESSIONS__DECIDED_BY", json.dumps(config["decided_by"])
    )
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output
