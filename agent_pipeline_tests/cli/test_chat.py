"""`agent-pipeline chat`, with messages from standard input and a model behind an endpoint."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent_pipeline.cli.app import app
from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.errors import SettingsError
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.evaluation import test_tape
from agent_pipeline_tests.judging.endpoint import Request, Response, endpoint, says

SYSTEM = "You are the support agent of a shop."
TOOL = {
    "type": "function",
    "function": {
        "name": "find_orders",
        "description": "Find orders.",
        "parameters": {"type": "object", "properties": {"order_id": {"type": "string"}}},
    },
}
ROWS: list[DatasetRow] = [
    {
        "task_key": "support-001",
        "tools": [TOOL],  # type: ignore[list-item]
        "messages": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": "Where is my order?"},
        ],
    }
]


def calls(name: str, arguments: dict[str, Any]) -> Response:
    status, headers, body = says(None)
    answer = json.loads(body)
    function = {"name": name, "arguments": json.dumps(arguments)}
    answer["choices"][0]["message"]["tool_calls"] = [
        {"id": "c1", "type": "function", "function": function}
    ]
    return status, headers, json.dumps(answer)


def answer_with(request: Request, order_id: str) -> Response:
    """Call a tool first, and then tell what the tool said."""
    last = request["messages"][-1]
    if last["role"] == "user":
        return calls("find_orders", {"order_id": order_id})
    return says(f"The tool said: {last['content']}")


def answer(request: Request, number: int) -> Response:
    return answer_with(request, "W1")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose agent has rows and no world."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.toml").write_text('lake = "lake"\n', encoding="utf-8")
    monkeypatch.setattr(
        "agent_pipeline.evaluation.agent_prompt.read_prompt_rows", lambda lake, key: ROWS
    )
    monkeypatch.setattr("agent_pipeline.evaluation.heldout.heldout_rows", lambda lake, key: ROWS)
    return tmp_path


def chat(text: str, *options: str) -> Any:
    return CliRunner().invoke(
        app, ["chat", "shop/support", *options], input=text, catch_exceptions=False
    )


def test_person_answers_the_calls(project: Path) -> None:
    with endpoint(answer) as server:
        done = chat("Where is W1?\nit is lost\n", "--model", f"{server.url}#m")
    assert done.exit_code == 0, done.output
    first, second = server.requests
    assert first["messages"] == [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": "Where is W1?"},
    ]
    assert first["tools"] == [TOOL]
    assert second["messages"][-1]["content"] == "it is lost"
    assert 'calls find_orders {"order_id": "W1"}' in done.stdout
    assert "model: The tool said: it is lost" in done.stdout


def test_commands_of_the_chat(project: Path) -> None:
    with endpoint(lambda request, number: says("Hello.")) as server:
        done = chat(
            "/system\n/tools\n/nothing\nHi\n/again\nHi again\n", "--model", f"{server.url}#m"
        )
    assert SYSTEM in done.stdout and "find_orders: Find orders." in done.stdout
    assert "no command /nothing" in done.stdout
    assert [len(request["messages"]) for request in server.requests] == [2, 2]


def test_two_models_side_by_side(project: Path) -> None:
    with (
        endpoint(lambda request, number: says("I am the first.")) as one,
        endpoint(lambda request, number: says("I am the second.")) as two,
    ):
        options = ("--model", f"{one.url}#m", "--compare", f"{two.url}#n", "--tools", "none")
        done = chat("Hi\n", *options)
    (line,) = [line for line in done.stdout.splitlines() if "I am the first." in line]
    assert "I am the second." in line
    assert "tools" not in one.requests[0] and "tools" not in two.requests[0]


def test_world_answers_the_calls_and_judges_the_chat(project: Path) -> None:
    toml = '[agents."shop/support"]\nworld = "agent_pipeline.sample.shop:World"\n'
    (project / "pipeline.toml").write_text(f'lake = "lake"\n{toml}', encoding="utf-8")
    with endpoint(answer) as server:
        done = chat("\n", "--model", f"{server.url}#m")
    first, second = server.requests
    assert first["messages"][0]["role"] == "system" and first["messages"][1]["role"] == "user"
    assert f"begins with: {first['messages'][1]['content']}" in done.stdout
    assert second["messages"][-1]["role"] == "tool"
    assert "In the world, the task is " in done.stdout


def test_recorded_sessions_answer_the_calls(project: Path) -> None:
    """A recorded call gets its recorded result, and any other call gets an error."""
    arguments = {"order_id": "W1"}
    messages = test_tape.say("Where?", test_tape.call("find_orders", "lost at sea", **arguments))
    row = test_tape.session("s1", messages, task_key="support-001", tools=[TOOL])
    test_tape.recorded(Lake(str(project / "lake")), row, reads=("find_orders",))
    with endpoint(answer) as server:
        done = chat("Where is W1?\n", "--model", f"{server.url}#m", "--tools", "tape")
    assert "recorded sessions of the task support-001" in done.stdout
    assert "model: The tool said: lost at sea" in done.stdout
    assert "In the world, the task" not in done.stdout
    with endpoint(lambda request, number: answer_with(request, "W2")) as server:
        done = chat("Where is W2?\n", "--model", f"{server.url}#m", "--tools", "tape")
    assert "not recorded" in done.stdout


def test_control_characters_of_a_model_never_reach_the_terminal(project: Path) -> None:
    with endpoint(lambda request, number: says("a\x1b[2J\nb")) as server:
        done = chat("Hi\n", "--model", f"{server.url}#m", "--tools", "none")
    assert "\x1b[2J" not in done.output and "a\\x1b[2J\nb" in done.stdout


@pytest.mark.parametrize(
    "options", [("--tools", "world"), ("--tools", "both"), ("--task", "support-001")]
)
def test_options_that_do_not_fit_the_agent(project: Path, options: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, ["chat", "shop/support", "--model", "base", *options])
    assert isinstance(done.exception, SettingsError)
