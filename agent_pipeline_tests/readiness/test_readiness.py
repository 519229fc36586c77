"""The report agrees with the pipeline, and says why an agent cannot be trained yet."""

import csv
import tomllib
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from agent_pipeline.config.settings import load_settings
from agent_pipeline.datasets.sft_tables import read_sft_columns
from agent_pipeline.datasets.splits import SPLITS
from agent_pipeline.evaluation.tool_effects import DECLARED, READ_NAME
from agent_pipeline.judging.options import JudgingOptions
from agent_pipeline.readiness.proposal import propose_remedies
from agent_pipeline.readiness.report import AgentReport, BlockerKind, Readiness
from agent_pipeline.readiness.screen import (
    REASONS,
    WIDTH,
    describe_agent,
    describe_readiness,
    describe_worth,
)
from agent_pipeline.readiness.scripts_of_writing import find_script
from agent_pipeline.selection.leaks import find_leaks
from agent_pipeline_tests.readiness.examined import (
    build_by_assets,
    chat,
    examine_one,
    examine_store,
    make_doctor,
    write_chats,
)

STORES = ["sample", "tau-bench/gpt-4o-airline_tasks00-24.json", "agents", "duplicates"]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, sample_store: Path) -> Path:
    match request.param:
        case "sample":
            return sample_store
        case "agents":
            return write_chats(tmp_path / "agents.jsonl", near_equal_requests())
        case "duplicates":
            return write_chats(tmp_path / "chats.jsonl", private_duplicates())
    traces: Path = request.getfixturevalue("real_traces")
    return traces / request.param


def near_equal_requests() -> list[dict[str, object]]:
    """Requests of 30 words that differ in one word, so that they are trials of one task."""
    words = [f"word{number}" for number in range(60)]
    return [
        chat(
            f"s-{number:03}",
            " ".join([*words, f"end{number}"]) if number % 2 else f"find the thing {number}",
            judgment="acceptable" if number % 3 else "unacceptable",
            parent_session_id=f"s-{number - 1:03}" if number % 10 == 9 else None,
        )
        for number in range(120)
    ]


def private_duplicates() -> list[dict[str, object]]:
    """Sessions that are equal once private data is replaced."""
    return [
        chat(
            f"s-{number}",
            "my mail is ana@example.org",
            f"thing {number % 4}",
            judgment="acceptable",
        )
        for number in range(24)
    ]


def test_report_agrees_with_the_tables(store: Path, tmp_path: Path) -> None:
    """Trainable sessions, drop reasons, splits and leaks are those that the assets make."""
    settings = load_settings(store=str(store), lake=str(tmp_path / "lake"))
    keys = settings.open_store().partitions()
    assert keys
    examiner = make_doctor(load_settings(store=str(store), lake=str(tmp_path / "empty")))
    for key in keys[:1]:
        agent = examiner.examine_agent(
            examiner.settings.open_store(), examiner.settings.open_lake(), key
        )
        built, reasons = build_by_assets(settings, key)
        lake = settings.open_lake()
        rows = read_sft_columns(lake, key, ["split", "task_key"])
        assert agent.trainable == len(rows) == built.counts["rows"]
        splits = Counter(rows["split"].to_pylist())
        assert agent.tasks.rows == {name: splits[name] for name in SPLITS}
        assert sum(agent.tasks.trained.values()) == len(set(rows["task_key"].to_pylist()))
        assert agent.tasks.leaks == len(find_leaks(lake, key).leaks)
        dropped: Counter[str] = Counter()
        for name, count in agent.dropped.items():
            dropped[name.partition(":")[0]] += count
        del dropped["no_turn_to_train"]
        assert dropped == Counter(reason for reason in reasons if reason != "kept")
        assert agent.contents.sessions == len(reasons)


SCORES = st.lists(
    st.sampled_from([0.0, 1.0, 2.0, 3.0, 5.0]) | st.floats(-1, 2), min_size=4, max_size=12
)


@given(SCORES, SCORES, st.sampled_from([{}, {"score_acceptable": 1.0}]))
@hypothesis_settings(max_examples=12, deadline=None)
@example([1.0, 2.0, 3.0, 4.0, 5.0] * 8, [1.0] * 40, {})
@example([0.0] * 40, [1.0, 4.0] * 20, {})
def test_report_agrees_on_scores_above_1(
    tmp_path_factory: pytest.TempPathFactory,
    scores: list[float],
    metrics: list[float],
    limits: dict[str, float],
) -> None:
    """The report counts the verdicts that the night gives, whatever the scale of the scores is."""
    folder = tmp_path_factory.mktemp("scores")
    chats = [
        chat(f"s-{n:02}", f"find {n}", score=score, scores={"m": metric})
        for n, (score, metric) in enumerate(zip(scores, metrics, strict=False))
    ]
    store = write_chats(folder / "c.jsonl", chats)
    judging = {"metrics": {"m": "higher"}, "decided_by": ["metrics", "score"], **limits}
    assets = {"judged_sessions": judging}
    agent = examine_one(store, lake=str(folder / "empty"), assets=assets)
    settings = load_settings(store=str(store), lake=str(folder / "lake"), assets=assets)
    (key,) = settings.open_store().partitions()
    built, _ = build_by_assets(settings, key)
    judged = settings.open_lake().open("judged_sessions", key).read(["verdict"])
    counts = Counter(judged["verdict"].to_pylist())
    assert agent.judges.acceptable == counts["acceptable"]
    assert agent.judges.unacceptable == counts["unacceptable"]
    assert agent.trainable == built.counts["rows"]


def test_stars_need_limits(tmp_path: Path) -> None:
    """Scores from 1 to 5 block the agent, as scores that the limits do not judge."""
    chats = [chat(f"s-{n}", f"find {n}", score=1.0 + n % 5) for n in range(40)]
    agent = examine_one(write_chats(tmp_path / "c.jsonl", chats))
    assert agent.judges.verdicts == {"nobody": 40} and not agent.is_ready
    assert agent.judges.undecided_scores == 40 and agent.trainable == 0


@pytest.mark.parametrize(
    ("change", "acceptable"), [({"score_acceptable": 1.0}, 10), ({"score_unacceptable": 0.0}, 0)]
)
def test_limits_set_to_the_defaults_are_examined_again(
    tmp_path: Path, change: dict[str, float], acceptable: int
) -> None:
    """Only a limit for good scores shows that the user knows the scale."""
    chats = [chat(f"s-{n}", f"find {n}", score=1.0 + n % 5) for n in range(10)]
    plain = {"store": str(write_chats(tmp_path / "c.jsonl", chats))}
    first = make_doctor(load_settings(**plain))
    first.report()
    second = make_doctor(load_settings(**plain, assets={"judged_sessions": change}))
    second.earlier = first
    (agent,) = second.report().agents
    assert agent.judges.acceptable == acceptable


def test_report_uses_the_ledger_of_the_lake(tmp_path: Path) -> None:
    """A task that was trained stays in its split, even if the sizes change."""
    chats = [chat(f"s-{n}", f"find thing {n}", judgment="acceptable") for n in range(40)]
    store = write_chats(tmp_path / "chats.jsonl", chats)
    settings = load_settings(store=str(store), lake=str(tmp_path / "lake"))
    (key,) = settings.open_store().partitions()
    build_by_assets(settings, key)
    split = {"test": 0.3, "select": 0.6}
    recorded = examine_one(store, lake=str(tmp_path / "lake"), split=split)
    assert recorded.tasks.rows == examine_one(store, lake=str(tmp_path / "empty")).tasks.rows
    assert examine_one(store, lake=str(tmp_path / "empty"), split=split).tasks.rows["train"] < 20


@pytest.mark.parametrize(
    ("change", "is_reused"),
    [({"assets": {"sft_adapter": {"max_length": 512}}}, True), ({"system_prompt": "Hi."}, False)],
)
def test_second_report_examines_again_only_what_changed(
    tmp_path: Path, change: dict[str, object], is_reused: bool
) -> None:
    """A new length does not change the sessions; a new system prompt does."""
    chats = [chat(f"s-{n}", f"find thing {n}", judgment="acceptable") for n in range(12)]
    store = write_chats(tmp_path / "chats.jsonl", chats)
    plain = {"store": str(store), "lake": str(tmp_path / "lake")}
    first = make_doctor(load_settings(**plain))
    first.report()
    second = make_doctor(load_settings(**plain, agents={"p/a": change}))
    fresh = second.report()
    second.earlier = first
    assert replace_seconds(second.report()) == replace_seconds(fresh)
    (examined,) = second._examined.values()
    (first_examined,) = first._examined.values()
    assert (examined is first_examined) is is_reused


def replace_seconds(report: Readiness) -> list[AgentReport]:
    """The reports on the agents without what is measured."""
    return [msgspec.structs.replace(agent, training=None) for agent in report.agents]


def test_unjudged_sessions(tmp_path: Path) -> None:
    store = write_chats(tmp_path / "c.jsonl", [chat(f"s-{n}", f"find {n}") for n in range(9)])
    agent = examine_one(store)
    assert [blocker.kind for blocker in agent.blockers] == ["unjudged"]
    assert agent.judges.verdicts == {"nobody": 9} and not agent.is_ready
    assert agent.tasks.tasks == 9 and agent.trainable == 0


def test_metrics_without_a_direction_are_the_reason(tmp_path: Path) -> None:
    """The reason was that nobody judged, although users had rated the sessions."""
    chats = [chat(f"s-{n}", f"find {n}", scores={"feedback": n % 2}) for n in range(9)]
    agent = examine_one(write_chats(tmp_path / "c.jsonl", chats))
    (blocker,) = agent.blockers
    assert blocker.kind == "unread_metrics"
    assert "feedback: 9 of 9 sessions, from 0 to 1" in blocker.sentence
    assert '# feedback = "higher"' in agent.settings


def test_metrics_are_proposed_one_by_one(tmp_path: Path) -> None:
    """One line for all metrics said of each that more is better, also of a latency."""
    values = [{"quality": n % 6, "latency_s": n + 0.5, "feedback": n % 2} for n in range(12)]
    chats = [chat(f"s-{n}", f"find {n}", scores=scores) for n, scores in enumerate(values)]
    lines = examine_one(write_chats(tmp_path / "c.jsonl", chats)).settings
    text = "\n".join(lines)
    judged = tomllib.loads(text)["agents"]["p/a"]["assets"]["judged_sessions"]
    assert judged["metrics"] == {}, "only a person knows the direction"
    rules = ['quality = ">= 4"', 'latency_s = ">= 9.3"', 'feedback = "higher"']
    assert {f"# {rule}" for rule in rules} <= set(lines)
    for rule in rules:
        chosen = tomllib.loads(text.replace(f"# {rule}", rule))
        metrics = chosen["agents"]["p/a"]["assets"]["judged_sessions"]["metrics"]
        assert metrics == tomllib.loads(rule)
        assert JudgingOptions(metrics=metrics).policy.metrics == metrics


@pytest.mark.parametrize(("kept", "kinds"), [((), ["no_request"]), (("system",), [])])
def test_calls_without_a_request(tmp_path: Path, kept: tuple[str, ...], kinds: list[str]) -> None:
    """Some traces have the calls without the messages: judging them would be lost work."""
    chats = [chat(f"s-{n}", f"find {n}", judgment="acceptable") for n in range(200)]
    for record in chats:
        record["messages"] = [
            message
            for message in record["messages"]
            if message["role"] in ("assistant", "tool", *kept)
        ]
    agent = examine_one(write_chats(tmp_path / "c.jsonl", chats), task_pattern="s-(.*)")
    assert [blocker.kind for blocker in agent.blockers] == kinds
    assert agent.contents.without_request == 200 and agent.worth.requests == 0


@pytest.mark.parametrize(("rate", "text"), [(0.5454, "0.55"), (3.47, "3.5"), (1203.6, "1,204")])
def test_rates_have_no_needless_digits(tmp_path: Path, rate: float, text: str) -> None:
    agent = examine_one(write_chats(tmp_path / "c.jsonl", [chat("s", "find it")]))
    worth = msgspec.structs.replace(agent.worth, sessions_per_day=rate)
    assert describe_worth(worth).startswith(f"{text} sessions per day; ")


def test_labels_and_agreement_with_a_score(tmp_path: Path) -> None:
    """The agreement of a score with people is shown from thirty labelled sessions on."""
    chats = [chat(f"s-{n}", f"find {n}", score=float(n % 2)) for n in range(40)]
    store = write_chats(tmp_path / "c.jsonl", chats)
    for labelled, shown in ((29, 0), (40, 1)):
        with (tmp_path / "labels.csv").open("w", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["session_id", "judgment", "reason"])
            for number in range(labelled):
                good = number % 2 or number < 8
                writer.writerow([f"s-{number}", "acceptable" if good else "unacceptable", ""])
        judges = examine_one(store, labels=str(tmp_path / "labels.csv")).judges
        assert judges.labelled == labelled and len(judges.agreement) == shown
    (row,) = judges.agreement
    assert (row.judge, row.sessions, row.share) == ("score", 40, 0.9)
    assert 0.7 < row.low < 0.9 < row.high < 1


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"judgment": "unacceptable"}, "all_bad"),
        ({"judgment": "acceptable", "archived": True}, "all_dropped"),
    ],
)
def test_no_trainable_session(tmp_path: Path, fields: dict[str, object], kind: str) -> None:
    chats = [chat(f"s-{n}", f"find {n}", **fields) for n in range(9)]
    agent = examine_one(write_chats(tmp_path / "c.jsonl", chats))
    assert [blocker.kind for blocker in agent.blockers] == [kind]


def test_too_few_tasks(tmp_path: Path) -> None:
    chats = [chat(f"s-{n}", f"find {n}", judgment="acceptable") for n in range(3)]
    agent = examine_one(write_chats(tmp_path / "c.jsonl", chats))
    assert {blocker.kind for blocker in agent.blockers} == {"split"}


def test_proposed_split_has_tasks_everywhere(tmp_path: Path) -> None:
    """The settings to paste make the agent trainable."""
    chats = [chat(f"s-{n}", f"find thing {n}", judgment="acceptable") for n in range(5)]
    store = write_chats(tmp_path / "c.jsonl", chats)
    agent = examine_one(store)
    assert {blocker.kind for blocker in agent.blockers} == {"split"}
    split = tomllib.loads("\n".join(agent.settings))["split"]
    assert examine_one(store, split=split).is_ready


def test_export_of_one_day_has_no_rate(tmp_path: Path) -> None:
    """All sessions were written at once, so nothing is known about a day."""
    start = datetime(2024, 5, 1, tzinfo=UTC)
    chats = [
        chat(
            f"s-{n}",
            f"find thing number {n}",
            judgment="acceptable",
            created_at=(start + timedelta(minutes=n)).isoformat(),
        )
        for n in range(60)
    ]
    agent = examine_one(write_chats(tmp_path / "c.jsonl", chats))
    assert agent.outlook.weeks is None and not agent.worth.sessions_per_day


def test_long_rows_are_a_blocker_with_the_remedy(tmp_path: Path) -> None:
    chats = [
        chat(f"s-{n}", f"find {n} " + "and a thing " * 1000, judgment="acceptable")
        for n in range(40)
    ]
    store = write_chats(tmp_path / "c.jsonl", chats)
    report = examine_store(store)
    (agent,) = report.agents
    assert "length" in {blocker.kind for blocker in agent.blockers}
    lines = tomllib.loads("\n".join(agent.settings))
    assets = lines["agents"]["p/a"]["assets"]
    assert set(assets) == {"sft_adapter"}
    assert examine_one(store, agents=lines["agents"]).is_ready
    written = [choice.value for choice in propose_remedies([agent]) if choice.name == "max_length"]
    assert written == [assets["sft_adapter"]["max_length"]]


def test_sessions_beyond_the_context_may_be_shortened(tmp_path: Path) -> None:
    """No `max_length` helps; with the proposed share, the agent is trainable."""
    chats = [
        chat(f"s-{n}", f"find thing {n}", judgment="acceptable") if n % 4 else long_chat(n)
        for n in range(40)
    ]
    store = write_chats(tmp_path / "c.jsonl", chats)
    options: dict[str, object] = {"max_length": 20_000}
    agent = examine_one(store, assets={"sft_adapter": options})
    assert [blocker.kind for blocker in agent.blockers] == ["length"]
    assert agent.max_length == 8192 and "8192 instead of 20000" in agent.notes[0]
    lines = tomllib.loads("\n".join(agent.settings))
    proposed = lines["agents"]["p/a"]["assets"]["sft_adapter"]
    assert proposed == {"most_dropped": agent.most_dropped}
    assert 0.25 <= proposed["most_dropped"] < 0.6
    assert examine_one(store, assets={"sft_adapter": options | proposed}).is_ready


def test_bad_sessions_do_not_block_by_their_length(tmp_path: Path) -> None:
    """They are not trained on, so that their length does not matter."""
    chats = [
        chat(f"s-{n}", f"find thing {n}", judgment="acceptable")
        if n % 4
        else long_chat(n) | {"judgment": "unacceptable"}
        for n in range(60)
    ]
    assert examine_one(write_chats(tmp_path / "c.jsonl", chats)).is_ready


def long_chat(number: int) -> dict[str, object]:
    """A good session of two requests, the first of which is longer than SmolLM2's context."""
    record = chat(f"s-{number}", f"find {number} " + "and a thing " * 4000, judgment="acceptable")
    later = chat("x", f"find thing {number} too")["messages"][1:]
    return record | {"messages": record["messages"] + later}


def test_outlook_in_weeks_and_with_a_larger_share(tmp_path: Path) -> None:
    """The rate is that of the last month of the store, not of the calendar."""
    start = datetime(2024, 5, 1, tzinfo=UTC)
    chats = [
        chat(
            f"s-{n}",
            f"find thing number {n}",
            judgment="acceptable",
            created_at=(start + timedelta(hours=n)).isoformat(),
        )
        for n in range(600)
    ]
    agent = examine_one(write_chats(tmp_path / "c.jsonl", chats))
    outlook = agent.outlook
    assert agent.is_ready and not outlook.is_possible
    assert outlook.tasks_per_day == pytest.approx(24, rel=0.05)
    missing = outlook.needed - outlook.held_out
    assert outlook.weeks == pytest.approx(missing / (outlook.tasks_per_day * 0.1) / 7)
    assert outlook.share is not None
    wider = examine_one(tmp_path / "c.jsonl", split={"select": outlook.share})
    assert wider.outlook.is_possible
    assert agent.worth.sessions_per_day == pytest.approx(24, rel=0.05)


def test_leaks_block_training_until_a_pattern_names_the_tasks(tmp_path: Path) -> None:
    chats = [
        chat(
            f"task{task}-trial{trial}",
            f"find thing {task} which was {['red', 'green', 'blue'][trial]} once upon a time",
            judgment="acceptable",
        )
        for task in range(30)
        for trial in range(3)
    ]
    store = write_chats(tmp_path / "c.jsonl", chats)
    agent = examine_one(store)
    assert "leaks" in {blocker.kind for blocker in agent.blockers} and agent.tasks.leaks
    assert (
        agent.tasks.task_pattern
        and f"task_pattern = '{agent.tasks.task_pattern}'" in agent.settings
    )
    named = examine_one(store, task_pattern=agent.tasks.task_pattern)
    assert named.is_ready and named.tasks.tasks == 30 and named.tasks.median_trials == 3


class TestToolEffects:
    def effects(self, tmp_path: Path, **overrides: object) -> AgentReport:
        sessions = [chat(f"s-{number}", f"thing {number}") for number in range(3)]
        return examine_one(write_chats(tmp_path / "c.jsonl", sessions), **overrides)

    def test_are_shown_for_confirmation(self, tmp_path: Path) -> None:
        """A person sees which tools pass for tools that only read, with the reason."""
        agent = self.effects(tmp_path)
        effects = [(effect.tool, effect.writes, effect.reason) for effect in agent.tool_effects]
        assert effects == [("find", False, READ_NAME)]
        assert '  reads = ["find"]' in list(describe_agent(agent))

    def test_declared(self, tmp_path: Path) -> None:
        """What a person has said needs no confirmation."""
        agent = self.effects(tmp_path, agents={"p/a": {"reads": ["find"]}})
        assert [effect.reason for effect in agent.tool_effects] == [DECLARED]
        assert not [line for line in describe_agent(agent) if "reads =" in line]


def test_every_blocker_has_words() -> None:
    """Else a report on several agents would fail."""
    assert set(REASONS) == set(get_args(BlockerKind))


def test_screen_fits_into_80_columns(tmp_path: Path) -> None:
    store = write_chats(tmp_path / "agents.jsonl", near_equal_requests())
    report = examine_store(store, lake=str(tmp_path / "lake"))
    lines = list(describe_readiness(report))
    assert all(len(line) <= WIDTH for line in lines if "/" not in line.strip().split(" ")[-1])
    assert msgspec.json.decode(msgspec.json.encode(report), type=type(report)) == report


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("Hello", "Latin"),
        ("Grüße", "Latin"),
        ("Привет, how are you", "Latin"),
        ("Отмени заказ 12", "Cyrillic"),
        ("取消订单", "Chinese"),
        ("注文をキャンセル", "Japanese"),
        ("주문 취소", "Korean"),
        ("42 !", ""),
        ("", ""),
    ],
)
def test_scripts(text: str, script: str) -> None:
    assert find_script(text) == script
