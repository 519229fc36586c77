"""The real proxy of LiteLLM, with stubs as the champion and as the large model.

LiteLLM is installed in an environment of its own, in `~/.cache/agent-pipeline-tests/litellm`. If it
is missing, the tests are skipped:

    python -m venv ~/.cache/agent-pipeline-tests/litellm
    ~/.cache/agent-pipeline-tests/litellm/bin/pip install 'litellm[proxy]' msgspec
"""

import json
import os
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent_pipeline.gateway.traffic import (
    CONFIG_FILE,
    Models,
    follow_champion,
    read_rules,
    traffic_folder,
    write_traffic,
)
from agent_pipeline.gateway.turn_checks import RULES_FILE, TrafficRules
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import CHOSEN_MODEL
from agent_pipeline.sources import open_sources, parse_location, readers
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.ports import free_port

ENVIRONMENT = Path.home() / ".cache" / "agent-pipeline-tests" / "litellm"
PROXY = ENVIRONMENT / "bin" / "litellm"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not PROXY.exists(), reason=f"LiteLLM's proxy is not installed in {ENVIRONMENT}"
    ),
]

KEY = PartitionKey("shop", "support")
CHAMPION = "0123456789abcdef"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {argument: {"type": "string"}},
                "required": [argument],
            },
        },
    }
    for name, argument in (("find_orders", "query"), ("cancel", "order"))
]
LOOKED_UP = "looked_up('find_orders', 'order')"


def say(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def ask(tool: str, arguments: str, text: str = "") -> dict[str, Any]:
    function = {"name": tool, "arguments": arguments}
    return say(text) | {"tool_calls": [{"id": "c1", "type": "function", "function": function}]}


@dataclass
class Stub:
    """A model server that answers with one message, and remembers the requests.

    Attributes:
        message: The message, or None for an error.
        finish_reason: Why the server stopped.
        log_probability: The log-probability of the first token.
        forced: Whether a grammar forced the first token.
        seconds: The time until the answer.
        requests: The requests so far.
    """

    message: dict[str, Any] | None
    finish_reason: str = "stop"
    log_probability: float = -0.01
    forced: bool = False
    seconds: float = 0.0
    requests: list[dict[str, Any]] = field(default_factory=list)
    port: int = 0

    def answer(self) -> dict[str, Any]:
        text = str((self.message or {}).get("content") or "{}")
        best = 0.0 if self.forced else self.log_probability
        token = {
            "token": text, "logprob": self.log_probability, "bytes": list(text.encode()),
            "top_logprobs": [{"token": "x", "logprob": best, "bytes": [120]}],
        }  # fmt: skip
        choice = {
            "index": 0, "message": self.message, "finish_reason": self.finish_reason,
            "logprobs": {"content": [token]},
        }  # fmt: skip
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        return {
            "id": "x", "object": "chat.completion", "created": 1, "model": "stub",
            "choices": [choice], "usage": usage,
        }  # fmt: skip

    def start(self) -> ThreadingHTTPServer:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                stub.requests.append(json.loads(body))
                time.sleep(stub.seconds)
                status = 200 if stub.message else 500
                content = stub.answer() if stub.message else {"error": {"message": "it broke"}}
                sent = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(sent)))
                self.end_headers()
                self.wfile.write(sent)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = server.server_port
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server


@dataclass
class Gateway:
    """The running proxy, with its stubs and its lake."""

    url: str
    lake: Lake
    champion: Stub
    large: Stub
    log: Path

    def rules(self, **fields: Any) -> None:
        """Write the agent's rules, as the command `traffic` does."""
        rules = TrafficRules(share=1.0, champion=CHAMPION, reads=["find_orders"], log=str(self.log))
        models = Models("openai/big", f"http://127.0.0.1:{self.large.port}/v1", "BIG_KEY",
                        f"http://127.0.0.1:{self.champion.port}/v1", 2.0)  # fmt: skip
        write_traffic(self.lake, KEY, msgspec.structs.replace(rules, **fields), {str(KEY): models})

    def send(self, session: str, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
        """Send a conversation, and return the message of the answer."""
        body = {"model": str(KEY), "messages": messages, "tools": TOOLS, **fields}
        if session:
            body["litellm_session_id"] = session
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "Authorization": "Bearer sk-1"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            message: dict[str, Any] = json.load(answer)["choices"][0]["message"]
        return message


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("gateway")
    champion, large = Stub(say("small")), Stub(say("large"))
    servers = [champion.start(), large.start()]
    port = free_port()
    lake = Lake(str(folder / "lake"), folder / "cache")
    running = Gateway(f"http://127.0.0.1:{port}", lake, champion, large, folder / "log")
    running.rules()
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "BIG_KEY": "none",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LITELLM_MASTER_KEY": "sk-1",
        "NO_PROXY": "*",
    }
    config = traffic_folder(lake) / CONFIG_FILE
    command = [str(PROXY), "--config", str(config), "--port", str(port), "--host", "127.0.0.1"]
    with (folder / "proxy.log").open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        _wait(process, f"{running.url}/health/liveliness", folder / "proxy.log")
        yield running
    finally:
        process.terminate()
        process.wait(30)
        for server in servers:
            server.shutdown()


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (OSError, urllib.error.URLError):
            assert process.poll() is None, log.read_text()[-3000:]
            time.sleep(0.5)
    raise AssertionError(log.read_text()[-3000:])


@pytest.fixture(autouse=True)
def fresh(gateway: Gateway) -> None:
    """Let both stubs answer, and give all traffic to the champion."""
    gateway.champion.__init__(say("small"), port=gateway.champion.port)  # type: ignore[misc]
    gateway.large.__init__(say("large"), port=gateway.large.port)  # type: ignore[misc]
    gateway.rules()


QUESTION = [{"role": "user", "content": "Cancel K1."}]
CANCEL = ask("cancel", '{"order":"K1"}', "Open, so cancel.")


@pytest.mark.parametrize(
    ("change", "rules"),
    [
        ({"message": None}, {}),
        ({"seconds": 4.0}, {}),
        ({"message": ask("cancel", '{"order": ')}, {}),
        ({"message": ask("refund", "{}")}, {}),
        ({"message": ask("cancel", '{"number": "K1"}')}, {}),
        ({"message": say('<tool_call>{"name": "cancel"')}, {}),
        ({"message": say("")}, {}),
        ({"finish_reason": "length"}, {}),
        ({"message": CANCEL}, {"act": "reads"}),
        ({"message": CANCEL}, {"act": "sure"}),
        ({"message": CANCEL, "log_probability": -0.6}, {"act": "sure", "threshold": -0.5}),
        ({"message": CANCEL, "forced": True}, {"act": "sure", "threshold": -0.5}),
        ({"message": CANCEL}, {"preconditions": {"cancel": [LOOKED_UP]}}),
        ({"message": CANCEL}, {"preconditions": {"cancel": ["nowhere.to_be_found"]}}),
        ({}, {"champion": ""}),
        ({}, {"share": 0.0}),
    ],
    ids=["error", "timeout", "arguments", "tool", "schema", "text", "nothing", "cut", "write",
         "threshold missing", "unsure", "forced", "precondition", "no module", "no champion",
         "no share"],
)  # fmt: skip
def test_fallback(gateway: Gateway, change: dict[str, Any], rules: dict[str, Any]) -> None:
    """The large model answers instead of a turn of the champion that cannot be used."""
    gateway.rules(**rules)
    for name, value in change.items():
        setattr(gateway.champion, name, value)
    assert gateway.send("s", QUESTION)["content"] == "large"


@pytest.mark.parametrize(
    ("message", "rules"),
    [
        (CANCEL, {}),
        (CANCEL, {"act": "sure", "threshold": -0.5}),
        (ask("find_orders", '{"query":"K1"}'), {"act": "reads"}),
        (say("small"), {"act": "reads", "preconditions": {"cancel": [LOOKED_UP]}}),
    ],
    ids=["all", "sure", "read", "answer"],
)
def test_champion(gateway: Gateway, message: dict[str, Any], rules: dict[str, Any]) -> None:
    """An accepted turn of the champion reaches the agent unchanged."""
    gateway.rules(**rules)
    gateway.champion.message = message
    answer = gateway.send("s", QUESTION)
    calls = [call["function"] for call in answer.get("tool_calls") or ()]
    assert calls == [call["function"] for call in message.get("tool_calls") or ()]
    assert (answer["content"] or "") == message["content"] and not gateway.large.requests
    sent = gateway.champion.requests[-1]
    assert sent["temperature"] == 0 and sent["logprobs"] and sent["model"] == str(KEY)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1.0, "logprobs": False, "logit_bias": {"5": 9}},
        {"metadata": {"model_group": str(KEY), "agent_pipeline_champion": "x"}},
        {"model": f"{KEY}-champion"},
    ],
    ids=["parameters", "metadata", "model"],
)
def test_client_changes_nothing(gateway: Gateway, fields: dict[str, Any]) -> None:
    """The client cannot ask the champion in another way, or avoid the checks."""
    gateway.rules(act="sure", threshold=-0.5)
    gateway.champion.message = CANCEL
    assert gateway.send("s", QUESTION, **fields)["tool_calls"]
    sent = gateway.champion.requests[-1]
    assert sent["temperature"] == 0 and sent["logprobs"] and "logit_bias" not in sent
    gateway.champion.log_probability = -0.6
    assert gateway.send("s", QUESTION, **fields)["content"] == "large"
    if "temperature" in fields:
        assert gateway.large.requests[-1]["temperature"] == 1.0
    asked = len(gateway.champion.requests)
    gateway.rules(share=0.0)
    assert gateway.send("s", QUESTION, **fields)["content"] == "large"
    assert len(gateway.champion.requests) == asked


def test_modules_of_two_agents(gateway: Gateway, tmp_path: Path) -> None:
    """Each agent has its own folder of modules. A broken one stops only its own champion."""
    other = PartitionKey("shop", "intern")
    for name, verdict in (("support", True), ("intern", False)):
        (tmp_path / name).mkdir()
        code = f"def fits(context):\n    return {verdict}\n"
        (tmp_path / name / f"rules_of_{name}.py").write_text(code, encoding="utf-8")
    gateway.champion.message = CANCEL
    gateway.rules(
        preconditions={"cancel": ["rules_of_support.fits"]}, modules=str(tmp_path / "support")
    )
    rules = TrafficRules(
        share=1.0,
        champion=CHAMPION,
        preconditions={"cancel": ["rules_of_intern.fits"]},
        log=str(tmp_path / "log"),
        modules=str(tmp_path / "intern"),
    )
    write_traffic(gateway.lake, other, rules, {})
    assert gateway.send("s", QUESTION)["tool_calls"]
    (tmp_path / "intern" / "rules_of_support.py").write_text("def fits(context): 1\n")
    broken = {"cancel": ["nowhere.fits"]}
    write_traffic(gateway.lake, other, msgspec.structs.replace(rules, preconditions=broken), {})
    assert gateway.send("s", QUESTION)["tool_calls"]
    gateway.rules(preconditions=broken)
    assert gateway.send("s", QUESTION)["content"] == "large"


def test_damaged_rules(gateway: Gateway) -> None:
    """Without rules, no champion answers, also not one that the client names."""
    (traffic_folder(gateway.lake) / RULES_FILE).write_text("{")
    assert gateway.send("s", QUESTION)["content"] == "large"
    named = gateway.send("s", QUESTION, model=f"{KEY}-champion")
    assert named["content"] == "large"
    (traffic_folder(gateway.lake) / RULES_FILE).unlink()


def test_champion_that_moves(gateway: Gateway) -> None:
    """A turn that the champion began before a rollback is not used."""
    gateway.champion.seconds = 1.0
    move = threading.Timer(
        0.5, lambda: follow_champion(gateway.lake, KEY, "f" * 64, None, is_back=True)
    )
    move.start()
    assert gateway.send("s", QUESTION)["content"] == "large"


def test_sticky_share(gateway: Gateway) -> None:
    """Every turn of a session has the same model, and a share gets about that share of sessions."""
    gateway.rules(share=0.4)
    sessions = [f"session-{number}" for number in range(30)]
    first, second = ([gateway.send(name, QUESTION)["content"] for name in sessions] for _ in "ab")
    assert first == second and 4 <= first.count("small") <= 20


@pytest.mark.parametrize(
    ("session", "fields"), [("", {}), ("s", {"stream": True}), ("s", {"n": 2})]
)
def test_large_model_only(gateway: Gateway, session: str, fields: dict[str, Any]) -> None:
    """A request without a session id, for a stream or for several answers is not checked."""
    with suppress(ValueError):  # a stream is not one JSON object
        gateway.send(session, QUESTION, **fields)
    assert gateway.large.requests and not gateway.champion.requests


def test_rollback(gateway: Gateway) -> None:
    """After a rollback the running proxy asks the champion no more; a promotion keeps the share."""
    assert gateway.send("s", QUESTION)["content"] == "small"
    follow_champion(gateway.lake, KEY, "f" * 64, None, is_back=False)
    assert read_rules(gateway.lake)[str(KEY)].share == 1.0
    assert follow_champion(gateway.lake, KEY, CHAMPION * 4, None, is_back=True)
    assert gateway.send("s", QUESTION)["content"] == "large"


def test_logs_are_sessions(gateway: Gateway) -> None:
    """The log is read as sessions: the conversation, the tool round trip, and who answered."""
    gateway.champion.message = ask("find_orders", '{"query":"K1"}', "A look-up.")
    call = gateway.send("logged", QUESTION, metadata={"task_id": "t1"})
    result = {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "{}"}
    gateway.champion.message = say("Nothing found.")
    messages = [
        *QUESTION,
        {"role": "assistant", "content": call["content"], "tool_calls": call["tool_calls"]},
        result,
    ]
    assert gateway.send("logged", messages, metadata={"task_id": "t1"})["content"]
    gateway.rules(share=0.0)
    gateway.send("other", QUESTION)
    gateway.rules(act="reads")
    gateway.champion.message = CANCEL
    gateway.send("refused", QUESTION)
    sessions = _read_log(gateway, {"logged", "other", "refused"})
    assert sessions["refused"].model_id == "openai/big"
    assert sessions["refused"].context[CHOSEN_MODEL] == f"{KEY}@{CHAMPION}"
    assert CHOSEN_MODEL not in sessions["other"].context
    assert [message["content"] for message in sessions["refused"].messages] == [
        "Cancel K1.",
        "large",
    ]
    logged = sessions["logged"]
    assert [message["role"] for message in logged.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert logged.messages[-1]["content"] == "Nothing found."
    assert logged.model_id == f"{KEY}@{CHAMPION}" and logged.task_id == "t1"
    assert sessions["other"].model_id == "openai/big"
    assert [tool["function"]["name"] for tool in logged.tools] == ["find_orders", "cancel"]


def _read_log(gateway: Gateway, names: set[str]) -> dict[str, Any]:
    """Return the sessions of the log when it has all names: LiteLLM logs after the answer."""
    deadline = time.monotonic() + 60
    sessions: dict[str, Any] = {}
    while time.monotonic() < deadline and not names <= sessions.keys():
        time.sleep(0.5)
        if not gateway.log.exists():
            continue
        location = parse_location(str(gateway.log), gateway.log)
        source = open_sources([location], readers([]), gateway.log.parent / "servers")
        sessions = {stored.session_id: stored.build() for stored in source.stored(KEY)}
    assert names <= sessions.keys(), sorted(sessions)
    return sessions
