"""The command init: the file that it writes, questions, and a second run."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from agent_pipeline.cli import init as init_module
from agent_pipeline.cli import running
from agent_pipeline.cli.app import app
from agent_pipeline.config.overrides import overrides
from agent_pipeline.config.settings import load_settings
from agent_pipeline.config.starting_file import Choice
from agent_pipeline.judging.options import JudgingOptions
from agent_pipeline.keys import PartitionKey
from agent_pipeline.models.base_model import EMBEDDED
from agent_pipeline.models.device import EXACT
from agent_pipeline.readiness import doctor as doctor_room
from agent_pipeline.readiness.token_counts import BaseTokens, load_tokens
from agent_pipeline.readiness.training_outlook import TrainingMachine
from agent_pipeline_tests.readiness import examined
from agent_pipeline_tests.readiness.examined import chat, write_chats


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder. Tokens are estimated, because loading a tokenizer takes seconds."""
    monkeypatch.setattr(
        doctor_room, "load_tokens", lambda name, *rest: BaseTokens(name, None, None, "a test")
    )
    monkeypatch.setattr(examined, "TOKENIZERS", {})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, answers: str = "") -> Result:
    return CliRunner().invoke(app, ["init", *arguments], input=answers, catch_exceptions=False)


def written(project: Path) -> str:
    return (project / "pipeline.toml").read_text(encoding="utf-8")


def trials(**fields: object) -> list[dict[str, object]]:
    """Thirty tasks with three trials each, whose ids show it."""
    colours = ["red", "green", "blue"]
    return [
        chat(
            f"task{task}-trial{trial}",
            f"find thing {task} which was {colours[trial]} once upon a time",
            **fields,
        )
        for task in range(30)
        for trial in range(3)
    ]


def test_judged_store_is_trainable_after_one_command(project: Path) -> None:
    """The trials of a task would leak into another split without the pattern that init writes."""
    write_chats(project / "chats.jsonl", trials(judgment="acceptable"))
    done = run("chats.jsonl", "--yes")
    assert done.exit_code == 0, done.output
    assert "materialize p/a" in done.stderr
    settings = load_settings()
    assert settings.store == "chats.jsonl" and settings.agents["p/a"].task_pattern
    assert settings.notify.urls == [] and not (project / "lake").exists()


def test_few_tasks_get_larger_splits(project: Path) -> None:
    """With the default sizes, no task of these five would be held out."""
    chats = [chat(f"s-{n}", f"find thing {n}", judgment="acceptable") for n in range(5)]
    write_chats(project / "chats.jsonl", chats)
    done = run("chats.jsonl", "--yes")
    assert done.exit_code == 0, done.output
    assert tomllib.loads(written(project))["split"]
    text = written(project)
    assert run("chats.jsonl", "--yes").exit_code == 0
    assert written(project) == text


def test_few_named_tasks_get_a_pattern_and_larger_splits(project: Path) -> None:
    """The splits are proposed for the tasks that the proposed pattern names."""
    few = trials(judgment="acceptable")[:18]
    write_chats(project / "chats.jsonl", few)
    done = run("chats.jsonl", "--yes")
    assert done.exit_code == 0, done.output
    values = tomllib.loads(written(project))
    assert values["agents"]["p/a"]["task_pattern"] and values["split"]


def test_comments_say_why(project: Path) -> None:
    write_chats(project / "chats.jsonl", trials(judgment="acceptable"))
    run("chats.jsonl", "--yes")
    lines = written(project).splitlines()
    pattern = next(index for index, line in enumerate(lines) if line.startswith("task_pattern"))
    assert "30 tasks" in lines[pattern - 1] and "90 sessions" in lines[pattern - 1]


def test_unjudged_store_gets_a_folder_for_labels(project: Path) -> None:
    write_chats(project / "chats.jsonl", [chat(f"s-{n}", f"find {n}") for n in range(9)])
    done = run("chats.jsonl", "--yes")
    assert done.exit_code == 1
    assert load_settings().labels == "labels" and (project / "labels").is_dir()
    assert run("chats.jsonl", "--yes").exit_code == 1


def test_second_run_keeps_comments_values_and_order(project: Path) -> None:
    """A second run adds what is missing, and names the values that differ from its proposal."""
    write_chats(project / "chats.jsonl", trials(judgment="acceptable"))
    text = (
        "# mine\nlake = 'there'  # a disk\nstore = \"chats.jsonl\"\n\n[night]\ncron = '0 3 * * *'  # three\n"
        '\n[agents."p/a"]\nsystem_prompt = "Be kind."  # why\n'
    )
    (project / "pipeline.toml").write_text(text, encoding="utf-8")
    done = run("chats.jsonl", "--yes")
    assert done.exit_code == 0, done.output
    after = written(project)
    for line in text.splitlines():
        assert line in after
    lines = [line for line in text.splitlines() if line]
    assert [line for line in after.splitlines() if line in lines] == lines
    assert "kept: lake = 'there' (proposal: 'lake')" in done.output
    values = tomllib.loads(after)
    assert values["agents"]["p/a"]["system_prompt"] == "Be kind."
    assert values["agents"]["p/a"]["task_pattern"] and values["base_model"]
    run("chats.jsonl", "--yes")
    assert written(project) == after


def test_file_counts_as_the_screen_does(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file had the lengths of another base model's tokenizer, and a second run proposed a base
    that is too short.
    """
    known = load_tokens(EMBEDDED, load_settings().cache_path, False)
    monkeypatch.setattr(
        doctor_room,
        "load_tokens",
        lambda name, *rest: known if name == EMBEDDED else BaseTokens(name, None, None, "a test"),
    )
    fast = TrainingMachine(EXACT, 64e9, 1e13)
    monkeypatch.setattr(doctor_room.TrainingMachine, "measure", lambda: fast)
    long_text = " and a thing" * 3_000
    chats = [chat(f"s-{n}", f"find {n}{long_text}", judgment="acceptable") for n in range(12)]
    write_chats(project / "chats.jsonl", chats)
    done = run("chats.jsonl", "--yes")
    assert load_settings().base_model != EMBEDDED
    comments = " ".join(written(project).replace("#", " ").split())
    shown = " ".join(done.output.split())
    for longest in re.findall(r"longest session has ([\d,]+) tokens", comments):
        assert f"{longest} (longest)" in shown
    assert "kept: base_model" not in run("chats.jsonl", "--yes").output


def test_hints_of_many_agents(project: Path) -> None:
    """The same comment for each of 85 agents hid the settings. A setting is never left out."""
    chats = [
        chat(f"a{agent}-s{n}", f"find {n} of {agent}") | {"agent": f"a{agent}"}
        for agent in range(12)
        for n in range(3)
    ]
    for record in chats:
        del record["tools"]
    write_chats(project / "chats.jsonl", chats)
    run("chats.jsonl", "--yes")
    text = written(project)
    assert text.count("# tools =") == 3
    assert "tools of 9 other agents" in " ".join(text.replace("#", " ").split())


@pytest.mark.parametrize("chosen", [True, False])
def test_base_model_of_the_user(
    project: Path, monkeypatch: pytest.MonkeyPatch, chosen: bool
) -> None:
    """A base model that the user chose was replaced for one agent."""
    fast = TrainingMachine(EXACT, 64e9, 1e13)
    monkeypatch.setattr(doctor_room.TrainingMachine, "measure", lambda: fast)
    chats = [
        chat(f"{agent}-{n}", f"find {n}" + words * (agent == "a2"), judgment="acceptable")
        | {"agent": agent}
        for agent in ("a0", "a1", "a2")
        for n in range(12)
        for words in [" and a thing" * 4_000]
    ]
    write_chats(project / "chats.jsonl", chats)
    if chosen:
        (project / "pipeline.toml").write_text('base_model = "me/mine"\n')
    run("chats.jsonl", "--yes")
    settings = load_settings()
    own = settings.agents["p/a2"].assets.get("sft_adapter", {}) if settings.agents else {}
    assert ("base_model" in own) == (not chosen)
    assert settings.base_model == ("me/mine" if chosen else EMBEDDED)


def test_questions_change_the_file(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base model, the patterns, who judges, and the tools."""
    chats = trials()
    for record in chats:
        del record["tools"]
    write_chats(project / "chats.jsonl", chats)
    (project / "tools.json").write_text("[]", encoding="utf-8")
    monkeypatch.setattr(init_module, "is_interactive", lambda: True)
    done = run("chats.jsonl", answers="my/base\nn\nnobody\ntools.json\n")
    assert done.exit_code in (0, 1), done.output
    settings = load_settings()
    assert settings.base_model == "my/base" and settings.labels == ""
    assert settings.agents["p/a"].task_pattern == ""
    assert settings.agents["p/a"].tools == "tools.json"


def test_missing_tools_file_writes_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chats = trials(judgment="acceptable")
    for record in chats:
        del record["tools"]
    write_chats(project / "chats.jsonl", chats)
    monkeypatch.setattr(init_module, "is_interactive", lambda: True)
    assert run("chats.jsonl", answers="\n\nabsent.json\n").exit_code == 2
    assert not (project / "pipeline.toml").exists()


@pytest.mark.parametrize("store", ["missing.jsonl", "empty"])
def test_bad_input_writes_nothing(project: Path, store: str) -> None:
    (project / "empty").mkdir()
    done = run(store, "--yes")
    assert done.exit_code == 2 and store in done.stderr
    assert not (project / "pipeline.toml").exists()


def test_several_stores_in_a_folder(project: Path) -> None:
    (project / "logs" / "b").mkdir(parents=True)
    write_chats(project / "logs" / "one.jsonl", trials(judgment="acceptable"))
    write_chats(project / "logs" / "b" / "two.jsonl", [chat("x", "find it") | {"agent": "b"}])
    (project / "logs" / "readme.txt").write_text("hello", encoding="utf-8")
    assert run("logs", "--yes").exit_code == 0
    store = load_settings().store
    assert all(
        not Path(name).is_absolute() for name in ([store] if isinstance(store, str) else store)
    )


def test_agent_with_long_sessions_gets_its_own_base_model(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = TrainingMachine(EXACT, 200e9, 1e14)
    monkeypatch.setattr(TrainingMachine, "measure", classmethod(lambda cls: machine))
    long_sessions = [
        {**chat(f"long-{number}", f"find thing {number}", "word " * 12_000), "agent": "b"}
        for number in range(3)
    ]
    write_chats(project / "chats.jsonl", [*trials(judgment="acceptable"), *long_sessions])
    run("chats.jsonl", "--yes")
    settings = load_settings()
    assert settings.base_model == EMBEDDED
    assert settings.agents["p/b"].assets["sft_adapter"]["base_model"] == "Qwen/Qwen3-0.6B"
    assert "base_model" not in settings.agents["p/a"].assets.get("sft_adapter", {})


def test_settings_of_many_agents_are_named_once() -> None:
    table = ("assets", "sft_adapter")
    choices = [
        Choice((), "store", "x"),
        *(Choice(("agents", f"p/{n}", *table), "max_length", 4096) for n in range(3)),
        Choice(("agents", "p/1"), "task_pattern", "x"),
    ]
    assert init_module.name_settings(choices) == (
        "store, assets.sft_adapter.max_length of 3 agents, task_pattern of p/1"
    )


@pytest.mark.parametrize(
    "value",
    ["a\\d+", "it's \\d", "\\d\x00", "\\d\n\x7f\x85", {"x": "higher", "y y": ">= 1"}, [1], 0.5],
)
def test_lines_are_toml(value: object) -> None:
    """The metrics of an answer were once written as a table without braces."""
    choice = Choice((), "name", value)
    assert tomllib.loads(choice.line) == {"name": value}


@given(st.text(st.sampled_from("\\'\"\x00\x1b\t\n\r\x7f\x85\u2028aé")))
def test_every_text_is_toml(value: str) -> None:
    assert tomllib.loads(Choice((), "name", value).line) == {"name": value}


@pytest.mark.parametrize(
    ("decided_by", "values"),
    [
        (["label", "measures"], []),
        (["label", "measures+llm"], ['judged_sessions.decided_by=["label"]']),
        (["llm"], ["judged_sessions.decided_by=[]"]),
    ],
)
def test_review_asks_no_paid_judge(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    decided_by: list[str],
    values: list[str],
) -> None:
    """The first `review` sent every session to the language model without a question."""
    text = f"[assets.judged_sessions]\ndecided_by = {json.dumps(decided_by)}\n"
    (project / "pipeline.toml").write_text(text, encoding="utf-8")
    runs: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(running, "run", lambda key, select, sets: runs.append((select, sets)))
    running.require_judged_sessions(load_settings(), PartitionKey("p", "a"))
    assert runs == [("+judged_sessions", values)]
    assert ("language model" in capsys.readouterr().out) == bool(values)
    if values:
        assert not JudgingOptions(**overrides_of(values)).policy.has_judge("llm")


def overrides_of(texts: list[str]) -> dict[str, object]:
    return overrides(texts, {"judged_sessions"})["judged_sessions"]


def test_metrics_need_a_direction() -> None:
    assert init_module.parse_metrics(" a=higher ,b= lower", ["a", "b"]) == {
        "a": "higher",
        "b": "lower",
    }
    for wrong in ("a", "c=higher", "a=up"):
        with pytest.raises(Exception, match="direction"):
            init_module.parse_metrics(wrong, ["a", "b"])


@pytest.mark.slow
def test_init_then_materialize_runs_the_first_time(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The datasets have the rows that the report promised."""
    from agent_pipeline.datasets.sft_tables import read_sft_columns
    from agent_pipeline.keys import PartitionKey
    from agent_pipeline_tests.readiness.examined import examine_one

    monkeypatch.setenv("DAGSTER_HOME", str(project / "home"))
    write_chats(project / "chats.jsonl", trials(judgment="acceptable"))
    assert run("chats.jsonl", "--yes").exit_code == 0
    command = ["materialize", "p/a", "--select", "group:traces or group:datasets"]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    rows = read_sft_columns(load_settings().open_lake(), PartitionKey("p", "a"), ["split"])
    splits = rows["split"].to_pylist()
    settings = load_settings()
    pattern = settings.agents["p/a"].task_pattern
    promised = examine_one(project / "chats.jsonl", task_pattern=pattern, lake="other").tasks.rows
    assert {name: splits.count(name) for name in promised} == promised


@pytest.mark.slow
def test_sessions_can_be_judged_right_after_init(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The README names `review` after `init`: nothing else may have to run between them."""
    monkeypatch.setenv("DAGSTER_HOME", str(project / "home"))
    write_chats(project / "chats.jsonl", trials())
    assert "agent-pipeline review p/a" in run("chats.jsonl", "--yes").stderr
    command = ["label", "export", "p/a", "--out", "review.csv", "--sample", "7"]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "7 sessions of p/a" in done.output
    status = CliRunner().invoke(app, ["status"], catch_exceptions=False)
    assert "agent-pipeline review p/a" in status.stderr


@pytest.mark.parametrize(("tool", "is_set"), [("find", True), ("other", False)])
def test_tools_file_beside_the_sessions(project: Path, tool: str, is_set: bool) -> None:
    """A file with a schema of every called tool is proposed. Other files are named only."""
    chats = trials(judgment="acceptable")
    for record in chats:
        del record["tools"]
    (project / "logs").mkdir()
    write_chats(project / "logs" / "chats.jsonl", chats)
    schemas = [{"type": "function", "function": {"name": tool, "parameters": {"type": "object"}}}]
    (project / "logs" / "schemas.json").write_text(json.dumps(schemas), encoding="utf-8")
    done = run("logs", "--yes")
    assert done.exit_code == 0, done.output
    assert "schemas.json" in done.output
    assert load_settings().agents["p/a"].tools == (
        str(project / "logs" / "schemas.json") if is_set else ""
    )
