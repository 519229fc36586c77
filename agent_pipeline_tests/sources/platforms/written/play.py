"""Two turns of coding agents, against a scripted model: `python play.py codex FOLDER PROGRAM`; see README.md.

The agents run in an empty home and in the folder `shop`, whose file says where the order is; the model asks for that file. Of what they
write, long texts (their own prompts, tools, catalogues) are cut.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

AGENT, OUT, PROGRAM = sys.argv[1], Path(sys.argv[2]).resolve(), sys.argv[3]
ROOT = Path(tempfile.mkdtemp())
SHOP = ROOT / "shop"
ASKED = ("Where is order 7?", "Thanks")
ANSWERS = {"in Ulm": "Your order is in Ulm.", "Thanks": "You are welcome."}
CALLS = {
    "Read": {"file_path": str(SHOP / "order.txt")},
    "exec_command": {"cmd": "cat order.txt"},
    "read_file": {"file_path": "order.txt"},
    "terminal": {"command": "cat order.txt"},
    "bash": {"command": "cat order.txt"},
}
SUBMIT = {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}
LONGEST = 300


class Model(BaseHTTPRequestHandler):
    """Anthropic's messages, OpenAI's responses and chat completions, Gemini's `generateContent`; all but the third as events."""

    def do_POST(self):
        told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        whole = json.dumps(told.get("messages") or told.get("input") or told.get("contents"))
        last = max((whole.rfind(words), words) for words in (*ANSWERS, ASKED[0]))[1]
        tools = json.dumps(told.get("tools", []))
        name = (
            next((name for name in CALLS if f'"name": "{name}"' in tools), None)
            if last == ASKED[0]
            else None
        )
        answer = (
            self.claude
            if "/messages" in self.path
            else self.items
            if "/responses" in self.path
            else self.gemini
        )
        answer = self.chat if "/chat/completions" in self.path else answer
        raw, kind = answer(name, ANSWERS.get(last, "Order 7"), told)
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(raw)

    def events(self, events):
        named = [f"event: {each['type']}\n" if "type" in each else "" for each in events]
        return "".join(
            f"{name}data: {json.dumps(each)}\n\n" for name, each in zip(named, events, strict=True)
        ).encode(), "text/event-stream"

    def claude(self, name, words, told):
        block = (
            {"type": "tool_use", "id": "c1", "name": name, "input": {}}
            if name
            else {"type": "text", "text": ""}
        )
        delta = {"type": "text_delta", "text": words}
        if name:
            delta = {"type": "input_json_delta", "partial_json": json.dumps(CALLS[name])}
        usage = {"input_tokens": 10, "output_tokens": 1}
        self.number = Model.number = Model.number + 1
        about = {
            "id": f"m{self.number}",
            "type": "message",
            "role": "assistant",
            "model": "m-1",
            "content": [],
            "usage": usage,
        }
        done = {"stop_reason": "tool_use" if name else "end_turn", "stop_sequence": None}
        return self.events(
            [
                {"type": "message_start", "message": about},
                {"type": "content_block_start", "index": 0, "content_block": block},
                {"type": "content_block_delta", "index": 0, "delta": delta},
                {"type": "content_block_stop", "index": 0},
                {"type": "message_delta", "delta": done, "usage": {"output_tokens": 2}},
                {"type": "message_stop"},
            ]
        )

    def items(self, name, words, told):
        item = {
            "type": "message",
            "id": "m1",
            "role": "assistant",
            "content": [{"type": "output_text", "text": words, "annotations": []}],
        }
        if name:
            item = {
                "type": "function_call",
                "id": "f1",
                "call_id": "c1",
                "name": name,
                "arguments": json.dumps(CALLS[name]),
            }
        details = {
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        usage = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12} | details
        made = {"id": "r1", "output": [item], "usage": usage}
        done = {"type": "response.output_item.done", "output_index": 0, "item": item}
        return self.events(
            [
                {"type": "response.created", "response": {"id": "r1"}},
                done,
                {"type": "response.completed", "response": made},
            ]
        )

    def gemini(self, name, words, told):
        part = {"functionCall": {"name": name, "args": CALLS[name]}} if name else {"text": words}
        usage = {"promptTokenCount": 10, "candidatesTokenCount": 2, "totalTokenCount": 12}
        choice = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
        return self.events(
            [{"candidates": [choice], "usageMetadata": usage, "modelVersion": "m-1"}]
        )

    def chat(self, name, words, told):
        called = name or ("bash" if AGENT == "mini_swe_agent" else None)
        function = {"name": called, "arguments": json.dumps(CALLS[name] if name else SUBMIT)}
        call = {"id": "c1" if name else "c2", "type": "function", "function": function}
        message = {"role": "assistant", "content": None if name else words} | (
            {"tool_calls": [call]} if called else {}
        )
        usage = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
        choices = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
        made = {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "m-1",
            "choices": choices,
            "usage": usage,
        }
        return json.dumps(made).encode(), "application/json"

    number = 0

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
threading.Thread(target=server.serve_forever, daemon=True).start()
URL = f"http://127.0.0.1:{server.server_port}"


def play(*runs, **variables):
    """Run a program, with an empty home and these variables."""
    home = ROOT / "home"
    home.mkdir(exist_ok=True)
    for run in runs:
        environment = {"PATH": os.environ["PATH"], "HOME": str(home)} | variables
        subprocess.run(
            [PROGRAM, *run],
            cwd=SHOP,
            env=environment,
            stdin=subprocess.DEVNULL,
            check=True,
            capture_output=True,
            timeout=60,
        )


def keep(name, pattern):
    """The one file that an agent wrote, with its own long texts cut and this machine's paths shortened."""
    (path,) = (ROOT / "home").rglob(pattern)
    raw = path.read_text().replace(str(ROOT), "/home/me")
    lines = (
        [json.dumps(cut(json.loads(line))) for line in raw.splitlines()]
        if path.suffix == ".jsonl"
        else [json.dumps(cut(json.loads(raw)))]
    )
    (OUT / name).write_text("\n".join(lines) + "\n")


def cut(value):
    if isinstance(value, dict):
        return {
            name: cut(each)
            for name, each in value.items()
            if name not in ("attachment", "world_state", "git")
        }
    if isinstance(value, list):
        return [cut(each) for each in value]
    return value[:LONGEST] if isinstance(value, str) else value


def claude_code():
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1"}
    runs = [["-p", ASKED[0], "--model", "m-1"], ["-p", "--continue", ASKED[1], "--model", "m-1"]]
    play(*runs, ANTHROPIC_BASE_URL=URL, ANTHROPIC_API_KEY="x", **quiet)
    keep("claude_code.jsonl", "projects/*/*.jsonl")


def codex():
    provider = {
        "name": "scripted",
        "base_url": f"{URL}/v1",
        "wire_api": "responses",
        "env_key": "OPENAI_API_KEY",
    }
    settings = [f'model_providers.scripted.{name}="{value}"' for name, value in provider.items()]
    settings += [
        'model_provider="scripted"',
        'model="m-1"',
        'sandbox_mode="danger-full-access"',
        'approval_policy="never"',
    ]
    told = ["exec", "--skip-git-repo-check", *(word for each in settings for word in ("-c", each))]
    play([*told, ASKED[0]], [*told, "resume", "--last", ASKED[1]], OPENAI_API_KEY="x")
    keep("codex.jsonl", "rollout-*.jsonl")


def gemini_cli():
    folder = ROOT / "home" / ".gemini"
    folder.mkdir(parents=True)
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "privacy": {"usageStatisticsEnabled": False},
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    variables = {
        "GEMINI_API_KEY": "x",
        "GOOGLE_GEMINI_BASE_URL": URL,
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    }
    model = ["--model", "gemini-2.5-pro"]
    play(["-p", ASKED[0], *model], ["--resume", "latest", "-p", ASKED[1], *model], **variables)
    keep("gemini_cli.jsonl", "chats/*.jsonl")


def mini_swe_agent():
    variables = {
        "OPENAI_API_KEY": "x",
        "OPENAI_API_BASE": f"{URL}/v1",
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
    }
    play(
        [
            "-y",
            "--exit-immediately",
            "-m",
            "openai/m-1",
            "-t",
            ASKED[0],
            "-o",
            str(ROOT / "home" / "order.traj.json"),
        ],
        **variables,
    )
    keep("mini_swe_agent.traj.json", "order.traj.json")


OPENHANDS = """
import logging, sys
logging.disable(logging.CRITICAL)
from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.tools.terminal import TerminalTool
url, folder, *asked = sys.argv[1:]
agent = Agent(llm=LLM(model="openai/m-1", base_url=url, api_key="x", usage_id="agent"), tools=[Tool(name=TerminalTool.name)])
conversation = Conversation(agent=agent, workspace=".", persistence_dir=folder)
for words in asked:
    conversation.send_message(words)
    conversation.run()
"""


def openhands():
    """The program is the Python that has openhands-sdk and openhands-tools; a conversation is a folder."""
    play(["-c", OPENHANDS, f"{URL}/v1", str(ROOT / "kept"), *ASKED])
    shutil.rmtree(OUT / "openhands", ignore_errors=True)
    for path in (ROOT / "kept").rglob("*.json"):
        place = OUT / "openhands" / path.relative_to(next((ROOT / "kept").iterdir()))
        place.parent.mkdir(parents=True, exist_ok=True)
        state = cut(json.loads(path.read_text().replace(str(ROOT), "/home/me")))
        place.write_text(
            json.dumps(
                state
                | (
                    {"agent": {"llm": {"model": state["agent"]["llm"]["model"]}}}
                    if "agent" in state
                    else {}
                )
            )
            + "\n"
        )


SHOP.mkdir()
(SHOP / "order.txt").write_text("in Ulm\n")
globals()[AGENT]()
shutil.rmtree(ROOT)
