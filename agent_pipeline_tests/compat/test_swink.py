"""Exporters of scored traces: the records, what is good and what is not, the same bytes."""

import copy
import json
import random
from collections import Counter
from pathlib import Path

import pytest

from agent_pipeline.compat.swink import (
    ChatMlExporter,
    DpoExporter,
    ExportOptions,
    NothingToExport,
    ScoredTrace,
    ShareGptExporter,
    TrainingReporter,
    export_traces,
    list_scored_traces,
)
from agent_pipeline.datasets.preferences import Pairing
from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline_tests.datasets.chats import answers, calls, says, session, user
from agent_pipeline_tests.sources.samples import SWINK_SET, swink_result


def trace(name: str, score: float, answer: str = "", case: str = "t", **fields) -> ScoredTrace:
    chat = [
        user("x"),
        calls(("a", "f", {"b": 1}), text="Wait."),
        answers("a", "1"),
        says(answer or name),
    ]
    return ScoredTrace(session(name, chat, task_key=f"task of {case}", **fields), score, case)


def swink_runs() -> list[dict]:
    """Three runs of one case, which end in other words."""
    runs = []
    for timestamp, value, words in (
        (100, 1.0, "In the shed."),
        (200, 0.0, "I do not know."),
        (300, 0.5, "Over there."),
    ):
        run = copy.deepcopy(swink_result(timestamp, "pass", value))
        del run["case_results"][0]["metric_results"][1]
        run["case_results"][0]["invocation"]["turns"][1]["assistant_message"]["content"] = [
            {"type": "text", "text": words}
        ]
        runs.append(run)
    return runs


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# The records


def test_a_run_of_swink_is_chatml_with_real_prompts_and_results(tmp_path: Path) -> None:
    reporter = TrainingReporter(
        tmp_path / "out" / "sft.jsonl", ExportOptions(quality_threshold=0.6)
    )
    (record,) = read(reporter.report(swink_runs(), SWINK_SET))
    assert [message["role"] for message in record["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert record["messages"][:2] == [
        {"role": "system", "content": "You look after a garden."},
        user("Where is the spade?"),
    ]
    assert record["messages"][3]["content"] == "spade"
    assert record["messages"][2] == calls(("c1", "find", {"what": "shed"}), text="I look.")
    assert record["metadata"] == {"case_id": "spade", "score": 1.0, "model_id": "tiny", "turns": 2}
    assert (record["session_id"], record["task_key"]) == ("spade:100", "spade") and len(
        record["content_sha256"]
    ) == 64
    assert +reporter.counts == {"traces": 3, "records": 1, "below_threshold": 2}
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["sft.jsonl"]


def test_the_original_records_are_those_to_the_key() -> None:
    runs = [each for run in swink_runs() for each in list_scored_traces(run, SWINK_SET)]
    options = ExportOptions(original=True)
    counts: Counter[str] = Counter()
    chatml, _ = ChatMlExporter().records(runs, options, counts)
    assert list(chatml) == ["messages", "metadata"] and list(chatml["metadata"]) == [
        "case_id",
        "score",
        "model_id",
        "turns",
    ]
    assert [message["role"] for message in chatml["messages"]] == [
        "system",
        "user",
        "assistant",
        "assistant",
    ]
    assert chatml["messages"][2]["tool_calls"] and counts["results_left_out"] == 2
    (pair,) = DpoExporter().records(runs, options)
    assert list(pair) == ["case_id", "chosen", "rejected"] and pair["chosen"][0]["role"] == "system"
    counts.clear()
    sharegpt, _ = ShareGptExporter().records(runs, options, counts)
    assert list(sharegpt) == ["conversations", "metadata"] and list(sharegpt["metadata"]) == [
        "case_id",
        "score",
    ]
    assert [(turn["from"], len(turn)) for turn in sharegpt["conversations"]] == [
        ("system", 2),
        ("human", 2),
        ("gpt", 2),
        ("gpt", 2),
    ]
    assert (counts["results_left_out"], counts["calls_left_out"]) == (2, 2)


@pytest.mark.parametrize("exporter", [ChatMlExporter, DpoExporter, ShareGptExporter])
def test_a_mark_of_a_tool_s_error_is_in_no_record(exporter) -> None:
    """Chat formats have no place for it, and OpenAI refuses a file with it."""
    chat = [user("x"), calls(("a", "f", {"b": 1})), answers("a", "gone") | {"is_error": True}]
    runs = [
        ScoredTrace(session(words, [*chat, says(words)], task_key="task"), score, "t")
        for words, score in (("Yes", 1.0), ("No", 0.0))
    ]
    records = exporter().records(runs, ExportOptions(quality_threshold=0.5))
    assert records and "is_error" not in json.dumps(records)


def test_metadata_is_left_out_where_it_is_not_asked_for() -> None:
    for form, exporter in (
        ("chatml", ChatMlExporter),
        ("dpo", DpoExporter),
        ("sharegpt", ShareGptExporter),
    ):
        traces = [trace("a", 1.0), trace("b", 0.0)]
        for original in (True, False):
            assert (
                "metadata"
                not in exporter().records(
                    traces, ExportOptions(form, include_metadata=False, original=original)
                )[0]
            )


# What is good, and what is not


def test_a_pair_shares_its_prompt_and_the_threshold_gates_the_chosen_side_alone() -> None:
    (pair,) = DpoExporter().records(
        [trace("good", 0.9), trace("bad", 0.1), trace("poor", 0.3)], ExportOptions("dpo")
    )
    assert [message["role"] for message in pair["prompt"]] == ["user", "assistant", "tool"]
    assert (pair["chosen"], pair["rejected"]) == ([says("good")], [says("bad")])
    assert (pair["case_id"], pair["task_key"], pair["session_id"], pair["rejected_session_id"]) == (
        "t",
        "task of t",
        "good",
        "bad",
    )
    assert pair["metadata"] == {"chosen_score": 0.9, "rejected_score": 0.1, "margin": 0.8}


@pytest.mark.parametrize(
    ("scores", "pairs"),
    [
        ((0.9, 0.9), 0),
        ((0.5, 0.4), 1),
        ((0.5, 0.45), 0),
        ((0.9, 0.6), 0),
        ((0.4, 0.1), 0),
        ((0.6000000000000001, 0.1), 1),
    ],
)
def test_a_rejected_run_is_below_the_threshold_by_the_margin(scores, pairs) -> None:
    traces = [trace(f"r{place}", score) for place, score in enumerate(scores)]
    if pairs:
        assert len(DpoExporter().records(traces, ExportOptions("dpo"))) == pairs
    else:
        with pytest.raises(NothingToExport, match=r"threshold 0\.5"):
            DpoExporter().records(traces, ExportOptions("dpo"))


def test_failures_of_the_infrastructure_obeyed_injections_and_unscored_runs_stand_on_no_side() -> (
    None
):
    unscored = trace("d", 0.0)
    unscored.scored = False
    traces = [
        trace("a", 1.0),
        trace("b", 0.0, error="gone"),
        trace("c", 1.0, attack_succeeded=True),
        unscored,
    ]
    counts: Counter[str] = Counter()
    with pytest.raises(NothingToExport):
        DpoExporter().records(traces, ExportOptions("dpo"), counts)
    assert counts["infrastructure_error"] == counts["attack_succeeded"] == counts["not_scored"] == 1
    assert [
        record["session_id"]
        for record in ChatMlExporter().records(traces, ExportOptions(quality_threshold=0.0))
    ] == ["a"]


def test_an_invocation_that_broke_off_is_no_bad_run() -> None:
    broken = swink_runs()[1]
    broken["case_results"][0]["invocation"]["turns"][1]["assistant_message"] |= {
        "stop_reason": "error",
        "error_message": "overloaded",
    }
    counts: Counter[str] = Counter()
    traces = list_scored_traces(swink_runs()[0], SWINK_SET) + list_scored_traces(broken, SWINK_SET)
    with pytest.raises(NothingToExport, match="infrastructure_error 1"):
        DpoExporter().records(traces, ExportOptions("dpo"), counts)


def test_a_case_without_metrics_has_the_score_0_and_one_without_an_invocation_is_counted() -> None:
    run = swink_result(1, "pass", 1.0)
    run["case_results"] += [
        {"case_id": "b", "invocation": run["case_results"][0]["invocation"], "metric_results": []},
        {"case_id": "c"},
    ]
    counts: Counter[str] = Counter()
    assert [
        (each.case_id, each.score, each.scored) for each in list_scored_traces(run, None, counts)
    ] == [
        ("spade", 1.0, True),
        ("b", 0.0, False),
    ]
    assert counts == {"cases_without_an_invocation": 1}
    with pytest.raises(DataError, match="not its summary"):
        list_scored_traces({"schema_version": 1, "cases": []})


def test_run_without_its_set() -> None:
    """A run whose set of prompts is not there lacks what the agent was asked: it is damaged, and counted."""
    counts: Counter[str] = Counter()
    with pytest.raises(NothingToExport):
        ChatMlExporter().records(
            list_scored_traces(swink_result(1, "pass", 1.0)), ExportOptions(), counts
        )
    assert counts["broken:cut_text"] == 1


# Files


@pytest.mark.parametrize("form", ["chatml", "dpo", "sharegpt"])
def test_a_file_loads_as_it_is_without_keys_of_null(form, tmp_path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    options = ExportOptions(form, include_metadata=False)
    traces = [
        trace("a", 1.0),
        trace("b", 0.0),
        ScoredTrace(session("c", [user("x"), says("No call.")]), 1.0, "u"),
    ]
    path = tmp_path / "x.jsonl"
    path.write_bytes(export_traces(traces, options))
    loaded = datasets.load_dataset(
        "json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert list(loaded) == read(path)


@pytest.mark.parametrize("form", ["chatml", "dpo", "sharegpt"])
def test_the_same_traces_in_any_order_are_the_same_bytes(form) -> None:
    traces = [
        trace(f"{case}{score}ü", score, case=case)
        for case in "bca"
        for score in (0.9, 1.0, 0.1, 0.0)
    ]
    options = ExportOptions(form, pairing=Pairing("all_pairs"))
    made = export_traces(traces, options)
    assert (
        made.decode("utf-8").count("\n") > 5
        and "ü" in made.decode("utf-8")
        and made.endswith(b"}\n")
    )
    for seed in range(3):
        assert export_traces(random.Random(seed).sample(traces, len(traces)), options) == made
    assert (
        traces[0].invocation.messages[0] == user("x")
        and traces[0].invocation.task_key == "task of b"
    ), "what is given stays as it is"


def test_pseudonyms_do_not_depend_on_the_order_of_the_runs() -> None:
    traces = [trace(name, 1.0, answer=f"Mail {name}@example.com") for name in ("jane", "john")]
    made = export_traces(traces, ExportOptions())
    assert (
        made == export_traces(traces[::-1], ExportOptions())
        and b"<EMAIL_1>" in made
        and b"<EMAIL_2>" in made
    )


def test_nothing_to_export_leaves_the_last_file_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "sft.jsonl"
    path.write_text("before", encoding="utf-8")
    with pytest.raises(
        NothingToExport,
        match=r"chatml at the quality threshold 0.9 .*below_threshold 1, traces 1; the best score is 0.75",
    ):
        TrainingReporter(path, ExportOptions(quality_threshold=0.9)).report(
            swink_result(1, "pass", 0.5), SWINK_SET
        )
    assert path.read_text(encoding="utf-8") == "before"
    with pytest.raises(NothingToExport, match="no traces"):
        export_traces([], ExportOptions())


def test_what_one_run_gives_away_as_private_is_private_in_the_prompt_of_the_other() -> None:
    asked = user("Set it to hunter2hunter2, please.")
    sent = [
        asked,
        calls(("a", "update", {"password": "hunter2hunter2"})),
        answers("a", "ok"),
        says("Done."),
    ]
    traces = [
        ScoredTrace(session("good", sent), 1.0, "t"),
        ScoredTrace(session("bad", [asked, says("No.")]), 0.0, "t"),
    ]
    (pair,) = DpoExporter().records(traces, ExportOptions("dpo"))
    assert (
        "hunter2" not in json.dumps(pair)
        and pair["prompt"][0]["content"] == "Set it to <PASSWORD_1>, please."
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"format": "csv"}, "choose one of chatml, dpo, sharegpt"),
        ({"quality_threshold": 2}, "threshold` of the export is 2"),
        ({"margin": float("nan")}, "`margin` of the export is nan"),
    ],
)
def test_options_that_cannot_be_are_refused(options, sentence) -> None:
    with pytest.raises(SettingsError, match=sentence):
        ExportOptions(**options)


def test_a_score_that_is_none_is_refused() -> None:
    with pytest.raises(DataError, match="score from 0 to 1"):
        export_traces([trace("a", float("nan"))], ExportOptions())


def test_every_judged_real_case_exports_and_no_poisoned_run_does(real_traces: Path) -> None:
    from agent_pipeline.sources import open_source

    source = open_source(
        real_traces / "agentdojo" / "important_instructions_slack_3pipelines.jsonl"
    )
    for key in source.partitions():
        runs = list(source.sessions(key))
        traces = [
            ScoredTrace(each, each.score or 0.0, each.task_id or "", scored=each.score is not None)
            for each in runs
        ]
        counts: Counter[str] = Counter()
        records = ChatMlExporter().records(traces, ExportOptions(), counts)
        obeyed = {each.session_id for each in runs if each.attack_succeeded or each.error}
        assert obeyed and not obeyed & {record["session_id"] for record in records}
        others = ("traces", "no_user_message", "turns_do_not_alternate")
        assert (
            counts["traces"]
            == len(runs)
            == sum(count for name, count in counts.items() if name not in others)
        )


def test_runs_of_several_agents_with_the_same_ids_stay_apart() -> None:
    traces = [
        trace("same", score, answer=f"{agent} {score}", agent=agent)
        for agent, score in (("a", 1.0), ("b", 0.0), ("c", 0.9), ("d", 0.1))
    ]
    pairs = DpoExporter().records(traces, ExportOptions("dpo", pairing=Pairing("all_pairs")))
    for pair in pairs:
        said = [pair[side][0]["content"].split()[1] for side in ("chosen", "rejected")]
        assert said == [str(pair["metadata"][f"{side}_score"]) for side in ("chosen", "rejected")]
    assert len(pairs) == 4
