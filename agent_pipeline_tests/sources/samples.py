"""Small stores of every file format, made here: what the real formats look like, with the oddities that readers must know."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from agent_pipeline.sources.agents.claude_code import ClaudeCodeSource
from agent_pipeline.sources.agents.claude_stream import ClaudeStreamSource
from agent_pipeline.sources.agents.cline import ClineSource
from agent_pipeline.sources.agents.codex import CodexSource
from agent_pipeline.sources.agents.codex_exec import CodexExecSource
from agent_pipeline.sources.agents.copilot_cli import CopilotCLISource
from agent_pipeline.sources.agents.gemini_cli import GeminiCLISource
from agent_pipeline.sources.agents.goose import GooseSource
from agent_pipeline.sources.agents.opencode import OpenCodeSource
from agent_pipeline.sources.agents.openhands import OpenHandsSource
from agent_pipeline.sources.agents.pi import PiSource
from agent_pipeline.sources.agents.qwen_code import IFlowSource, QwenCodeSource
from agent_pipeline.sources.benchmarks.agentdojo import AgentDojoSource
from agent_pipeline.sources.benchmarks.atif import ATIFSource
from agent_pipeline.sources.benchmarks.inspect_ai import InspectSource
from agent_pipeline.sources.benchmarks.nemo_gym import NemoGymSource
from agent_pipeline.sources.benchmarks.omniagents_eval import OmniagentsEvalSource
from agent_pipeline.sources.benchmarks.swe_agent import SWEAgentSource
from agent_pipeline.sources.benchmarks.swink import SwinkSource
from agent_pipeline.sources.benchmarks.tau2 import Tau2Source
from agent_pipeline.sources.benchmarks.tau_bench import TauBenchSource
from agent_pipeline.sources.benchmarks.toolbench import ToolBenchSource
from agent_pipeline.sources.formats.bare_messages import BareMessagesSource
from agent_pipeline.sources.formats.file_source import FileSource
from agent_pipeline.sources.formats.pairs import PromptCompletionSource
from agent_pipeline.sources.formats.plain import OpenAIChatSource, ResponsesSource, ShareGPTSource
from agent_pipeline.sources.platforms.api_logs import ApiLogSource
from agent_pipeline_tests.sources import logged_calls as logs
from agent_pipeline_tests.sources.agent_samples import (
    IFLOW_ID,
    cline_messages,
    codex_exec_lines,
    copilot_lines,
    goose_lines,
    iflow_lines,
    opencode_export,
    opencode_storage,
    pi_lines,
    qwen_lines,
    stream_lines,
    sts_lines,
)

WRITTEN = Path(__file__).parent / "platforms" / "written"
Files = dict[str, bytes]

CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "find", "arguments": '{"what": "shed"}'},
}
TOOL = {
    "type": "function",
    "function": {
        "name": "find",
        "description": "Finds a thing.",
        "parameters": {
            "type": "object",
            "properties": {"what": {"type": "string"}},
            "required": ["what"],
        },
    },
}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "You look after a garden."},
    {"role": "user", "content": "Where is the spade?"},
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "The spade is in the shed."},
    {"role": "assistant", "content": "It is in the shed. 🌱"},
]


def lines(*records: Any) -> bytes:
    """Records as JSON lines."""
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def document(value: Any) -> bytes:
    """A value as a JSON document with blanks, as people's tools write it."""
    return json.dumps(value, indent=2).encode()


def table(rows: list[dict[str, Any]], arrow: bool = False) -> bytes:
    """Rows as a Parquet or an Arrow file."""
    made, sink = pa.Table.from_pylist(rows), io.BytesIO()
    if arrow:
        with pa.ipc.new_file(sink, made.schema) as writer:
            writer.write_table(made)
    else:
        pq.write_table(made, sink)
    return sink.getvalue()


def archive(files: dict[str, Any]) -> bytes:
    """JSON files in a zip."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as made:
        for name, value in files.items():
            made.writestr(name, json.dumps(value))
    return sink.getvalue()


def put(folder: Path, files: Files) -> Path:
    """Files written into a folder; the file itself where it is only one."""
    for name, raw in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw)
    return folder / next(iter(files)) if len(files) == 1 else folder


def chat_row(**more: Any) -> dict[str, Any]:
    """A line of an OpenAI chat file."""
    return {
        "session_id": "s1",
        "project": "garden",
        "agent": "keeper",
        "messages": CHAT,
        "tools": [TOOL],
        "judgment": "acceptable",
    } | more


def history_row(**more: Any) -> dict[str, Any]:
    """A line of Responses items."""
    history = [
        {"role": "user", "content": "Where is the spade?"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Look in the shed."}]},
        {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"what": "shed"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "spade"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "note", "input": "found it"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "noted"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "In the shed."}],
        },
    ]
    return {
        "session_id": "h1",
        "history": history,
        "model": "small",
        "usage": {"input_tokens": 12, "output_tokens": 3},
    } | more


def sharegpt_row(**more: Any) -> dict[str, Any]:
    """A line of a ShareGPT file with a call."""
    turns = [
        {"from": "human", "value": "Where is the spade?"},
        {"from": "function_call", "value": '{"name": "find", "arguments": {"what": "shed"}}'},
        {"from": "observation", "value": "spade"},
        {"from": "gpt", "value": "In the shed."},
    ]
    return {
        "id": "g1",
        "system": "You look after a garden.",
        "conversations": turns,
        "tools": json.dumps([TOOL]),
        "reward": 1.0,
    } | more


def tau_run(task: int, trial: int, reward: float, **info: Any) -> dict[str, Any]:
    """A tau-bench result."""
    return {
        "task_id": task,
        "trial": trial,
        "reward": reward,
        "info": {"source": "user", **info},
        "traj": CHAT,
    }


def dojo_run(**more: Any) -> dict[str, Any]:
    """An AgentDojo run, of a pipeline that calls itself only `local`, without call ids."""
    asked = {"function": "find", "args": {"what": "shed"}, "id": None, "placeholder_args": None}
    messages = [
        {"role": "system", "content": [{"type": "text", "content": "You help."}]},
        {"role": "user", "content": [{"type": "text", "content": "Where is the spade?"}]},
        {"role": "assistant", "content": None, "tool_calls": [asked]},
        {
            "role": "tool",
            "content": "",
            "tool_call_id": None,
            "tool_call": asked,
            "error": "ValueError: no shed",
        },
        {
            "role": "assistant",
            "content": [{"type": "text", "content": "There is no shed."}],
            "tool_calls": [],
        },
    ]
    return {
        "suite_name": "garden",
        "pipeline_name": "local",
        "user_task_id": "user_task_0",
        "injection_task_id": None,
        "attack_type": None,
        "injections": {},
        "messages": messages,
        "error": None,
        "utility": True,
        "security": True,
        "duration": 1.5,
        "_path": "runs/keeper-70b/garden/user_task_0/none/none.json",
    } | more


def inspect_sample(number: int, value: Any, **more: Any) -> dict[str, Any]:
    """A sample of an Inspect log with a long text in its attachments."""
    messages = [
        {"role": "user", "content": "attachment://aa", "source": "input"},
        {
            "role": "assistant",
            "content": [
                {"type": "reasoning", "reasoning": "Look."},
                {"type": "text", "text": "I look."},
            ],
        }
        | {
            "tool_calls": [
                {"id": "c1", "function": "find", "arguments": {"what": "shed"}, "type": "function"}
            ]
        },
        {
            "role": "tool",
            "content": "",
            "tool_call_id": "c1",
            "function": "find",
            "error": {"type": "timeout", "message": "too slow"},
        },
        {"role": "assistant", "content": "I do not know."},
    ]
    model_event = {
        "event": "model",
        "timestamp": "2026-01-02T03:04:06+00:00",
        "tools": [TOOL["function"]],
    }
    return {
        "id": number,
        "epoch": 1,
        "input": "attachment://aa",
        "target": "shed",
        "messages": messages,
        "scores": {"match": {"value": value, "answer": "?"}},
        "metadata": {},
        "events": [{"event": "sample_init", "timestamp": "2026-01-02T03:04:05+00:00"}, model_event],
        "attachments": {"aa": "Where is the spade?"},
        "model_usage": {"tiny/one": {"input_tokens": 7, "output_tokens": 2}},
    } | more


def inspect_header(**more: Any) -> dict[str, Any]:
    """The head of an Inspect log."""
    run = {
        "task": "garden",
        "run_id": "r1",
        "model": "tiny/one",
        "created": "2026-01-02T03:04:00+00:00",
    }
    return {"version": 2, "status": "success", "eval": run, "stats": {}} | more


def toolbench_answer(win: bool, chains: list[Any]) -> dict[str, Any]:
    """A ToolBench answer with the prompts of its chosen chain."""
    answer = {
        "valid_data": bool(chains),
        "query": "Where is the spade?",
        "function": [TOOL["function"]],
        "train_messages": chains,
        "final_answer": "In the shed.",
        "finish_type": "give_answer",
        "total_tokens": 99,
        "query_count": 2,
    }
    return {"win": win, "tree": {"size": 3}, "answer_generation": answer}


LEGACY = [
    {"role": "user", "content": "Where is the spade?"},
    {
        "role": "assistant",
        "content": None,
        "function_call": {"name": "find", "arguments": '{"what": "shed"}'},
    },
    {"role": "function", "name": "find", "content": "spade"},
    {"role": "assistant", "content": "In the shed."},
]


def trajectory(**more: Any) -> dict[str, Any]:
    """A SWE-agent trajectory with a demonstration and a second agent."""
    history = [
        {
            "role": "system",
            "content": "You program.",
            "agent": "main",
            "message_type": "system_prompt",
        },
        {"role": "user", "content": "A demonstration.", "agent": "main", "is_demo": True},
        {
            "role": "user",
            "content": "Mend the shed.",
            "agent": "main",
            "message_type": "observation",
        },
        {
            "role": "assistant",
            "content": "I look.",
            "thought": "I look.",
            "action": "ls",
            "agent": "main",
            "tool_calls": [CALL],
        },
        {"role": "tool", "content": "shed.py", "agent": "main", "tool_call_ids": ["c1"]},
        {"role": "user", "content": "Is it mended?", "agent": "reviewer"},
        {"role": "assistant", "content": "It is.", "agent": "reviewer"},
        {"role": "assistant", "content": "Done.", "agent": "main"},
    ]
    stats = {"instance_cost": 0.25, "tokens_sent": 100, "tokens_received": 10, "api_calls": 2}
    config = json.dumps({"agent": {"model": {"name": "small-coder"}}})
    info = {"exit_status": "submitted", "submission": "diff", "model_stats": stats}
    return {
        "environment": "main",
        "trajectory": [],
        "history": history,
        "info": info,
        "replay_config": config,
    } | more


def swink_result(timestamp: int, verdict: str, value: float, **more: Any) -> dict[str, Any]:
    """One run of a set with one case."""
    said = {
        "content": [
            {"type": "thinking", "thinking": "Look in the shed.", "signature": None},
            {"type": "text", "text": "I look."},
            {
                "type": "tool_call",
                "id": "c1",
                "name": "find",
                "arguments": {"what": "shed"},
                "partial_json": None,
            },
        ],
        "model_id": "tiny",
        "stop_reason": "tool_use",
        "timestamp": timestamp * 1000,
    }
    found = {
        "tool_call_id": "c1",
        "content": [{"type": "text", "text": "spade"}],
        "is_error": False,
        "timestamp": timestamp * 1000 + 1,
    }
    last = {
        "content": [{"type": "text", "text": "In the shed."}],
        "model_id": "tiny",
        "stop_reason": "stop",
        "timestamp": timestamp * 1000 + 2,
    }
    calls = [{"id": "c1", "name": "find", "arguments": {"what": "shed"}}]
    invocation = {
        "turns": [
            {
                "turn_index": 0,
                "assistant_message": said,
                "tool_calls": calls,
                "tool_results": [found],
            },
            {"turn_index": 1, "assistant_message": last, "tool_calls": [], "tool_results": []},
        ],
        "total_usage": {"input": 10, "output": 4, "cache_read": 0, "cache_write": 0, "total": 14},
        "total_cost": {"input": 0.1, "output": 0.2, "total": 0.3},
        "final_response": "In the shed.",
        "model": {"provider": "local", "model_id": "tiny"},
    }
    metrics = [
        {"evaluator_name": "trajectory", "score": {"value": value, "threshold": 0.5}},
        {"evaluator_name": "response", "score": {"value": 1.0, "threshold": 0.5}},
    ]
    case = {
        "case_id": "spade",
        "invocation": invocation,
        "metric_results": metrics,
        "verdict": verdict,
    }
    return {
        "eval_set_id": "garden",
        "case_results": [case],
        "summary": {"total_cases": 1},
        "timestamp": timestamp,
    } | more


SWINK_SET = {
    "id": "garden",
    "name": "garden",
    "cases": [
        {
            "id": "spade",
            "name": "Spade",
            "system_prompt": "You look after a garden.",
            "user_messages": ["Where is the spade?"],
        }
    ],
}

OMNIAGENTS_RESULTS = {
    "agent": "keeper",
    "results": [
        {
            "task_id": "p1",
            "passed": True,
            "history": history_row()["history"],
            "measures": {"answered": {"passed": True, "reason": "", "tier": 1}},
        },
        {
            "task_id": "p1",
            "passed": False,
            "history": [],
            "measures": {"answered": {"passed": False, "reason": "no words"}},
        },
        {
            "prompt": "Where is it?",
            "passed": None,
            "history": CHAT,
            "error": {"message": "no server"},
        },
    ],
}


def codex_lines() -> list[dict[str, Any]]:
    """A rollout: injected context, a call, what an event repeats, token counts."""

    def line(second: int, kind: str, **payload: Any) -> dict[str, Any]:
        return {
            "timestamp": f"2026-01-02T03:04:{second:02d}.000Z",
            "type": kind,
            "payload": payload,
        }

    def said(role: str, words: str) -> dict[str, Any]:
        return {
            "type": "message",
            "role": role,
            "content": [
                {"type": "input_text" if role != "assistant" else "output_text", "text": words}
            ],
        }

    tokens = {"total_token_usage": {"input_tokens": 50, "output_tokens": 9, "total_tokens": 59}}
    return [
        line(
            0,
            "session_meta",
            id="roll-1",
            timestamp="2026-01-02T03:04:00.000Z",
            cwd="/home/me/garden",
            base_instructions={"text": "You code."},
        ),
        line(1, "response_item", **said("developer", "Sandboxed.")),
        line(
            1,
            "response_item",
            **said(
                "user",
                "<environment_context>\n  <cwd>/home/me/garden</cwd>\n</environment_context>",
            ),
        ),
        line(2, "response_item", **said("user", "Mend the shed.")),
        line(2, "event_msg", type="user_message", message="Mend the shed."),
        line(3, "turn_context", cwd="/home/me/garden", model="gpt-5-codex"),
        line(
            4,
            "response_item",
            type="reasoning",
            summary=[{"type": "summary_text", "text": "Look first."}],
            encrypted_content="gAAA",
        ),
        line(
            5,
            "response_item",
            type="function_call",
            name="shell",
            arguments='{"command": ["ls"]}',
            call_id="k1",
        ),
        line(
            6,
            "response_item",
            type="function_call_output",
            call_id="k1",
            output='{"output": "shed.py"}',
        ),
        line(7, "event_msg", type="token_count", info=tokens),
        line(8, "response_item", **said("assistant", "Mended.")),
        line(8, "event_msg", type="agent_message", message="Mended."),
    ]


def claude_lines(session: str = "cc-1") -> list[dict[str, Any]]:
    """A session: an API message in three lines with parallel calls, an abandoned branch, a side chain, a line of another type."""

    def line(
        own: str, parent: str | None, kind: str, message: dict[str, Any] | None, **more: Any
    ) -> dict[str, Any]:
        made = {
            "type": kind,
            "uuid": own,
            "parentUuid": parent,
            "isSidechain": False,
            "sessionId": session,
            "cwd": "/home/me/garden",
        }
        return (
            made
            | {"timestamp": f"2026-01-02T03:04:{len(own):02d}Z"}
            | ({"message": message} if message else {})
            | more
        )

    def said(name: str, *blocks: dict[str, Any], **usage: int) -> dict[str, Any]:
        return {
            "id": name,
            "role": "assistant",
            "model": "claude-x",
            "content": list(blocks),
            "usage": {"input_tokens": 5, **usage},
        }

    def result(call: str, words: Any) -> dict[str, Any]:
        return {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": call, "content": words}],
        }

    def call(name: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": name, "name": "Read", "input": {"path": name}}

    return [
        {"type": "summary", "summary": "The shed", "leafUuid": "zz"},
        line("u", None, "user", {"role": "user", "content": "Mend the shed."}),
        line(
            "bad1",
            "u",
            "assistant",
            said("m0", {"type": "text", "text": "I refuse."}, output_tokens=100),
        ),
        line(
            "aa1",
            "u",
            "assistant",
            said("m1", {"type": "thinking", "thinking": "Read both."}, output_tokens=1),
        ),
        line(
            "aa2",
            "aa1",
            "assistant",
            said("m1", {"type": "text", "text": "I read."}, output_tokens=2),
        ),
        line("aa3", "aa2", "assistant", said("m1", call("t1"), output_tokens=3)),
        line("r1", "aa3", "user", result("t1", "def shed(): ...")),
        line("aa4", "aa3", "assistant", said("m1", call("t2"), output_tokens=4)),
        line("sys", "aa4", "system", None, subtype="informational", content="note"),
        line(
            "s1",
            None,
            "user",
            {"role": "user", "content": "Look deeper."},
            isSidechain=True,
            agentId="ag7",
        ),
        line(
            "s2",
            "s1",
            "assistant",
            said("m9", {"type": "text", "text": "Deep."}, output_tokens=7),
            isSidechain=True,
            agentId="ag7",
        ),
        line("r2", "sys", "user", result("t2", [{"type": "text", "text": "def door(): ..."}])),
        line(
            "aaa5",
            "r2",
            "assistant",
            said("m2", {"type": "text", "text": "Mended."}, output_tokens=6),
        ),
    ]


def written(folder: str) -> Files:
    """The files of a folder that an agent wrote."""
    return {
        path.relative_to(WRITTEN).as_posix(): path.read_bytes()
        for path in sorted((WRITTEN / folder).rglob("*.json"))
    }


def openhands_events() -> list[dict[str, Any]]:
    """Events in one file: a system prompt, a request, two calls of one response, their results, an answer."""

    def event(number: int, kind: str, source: str, **more: Any) -> dict[str, Any]:
        return {
            "id": f"e{number}",
            "timestamp": f"2026-06-01T10:00:{number:02d}",
            "source": source,
            "kind": kind,
        } | more

    def said(role: str, words: str) -> dict[str, Any]:
        return {"role": role, "content": [{"type": "text", "text": words}]}

    def action(number: int, call: str, thought: str) -> dict[str, Any]:
        made = {
            "id": call,
            "name": "terminal",
            "arguments": json.dumps({"command": f"cat {call}"}),
            "origin": "completion",
        }
        words = [{"type": "text", "text": thought}] if thought else []
        more = {
            "thought": words,
            "reasoning_content": None,
            "tool_call": made,
            "tool_call_id": call,
            "llm_response_id": "r1",
        }
        return event(
            number,
            "ActionEvent",
            "agent",
            tool_name="terminal",
            action={"kind": "TerminalAction"},
            **more,
        )

    def result(number: int, call: str, words: str) -> dict[str, Any]:
        seen = {
            "kind": "TerminalObservation",
            "content": [{"type": "text", "text": words}],
            "is_error": False,
        }
        return event(
            number,
            "ObservationEvent",
            "environment",
            tool_name="terminal",
            tool_call_id=call,
            observation=seen,
            action_id="x",
        )

    return [
        event(
            1,
            "SystemPromptEvent",
            "agent",
            system_prompt={"type": "text", "text": "You write code."},
            tools=[],
        ),
        event(2, "MessageEvent", "user", llm_message=said("user", "Compare a and b.")),
        action(3, "a", "I read both."),
        action(4, "b", ""),
        result(5, "a", "one"),
        result(6, "b", "two"),
        event(7, "MessageEvent", "agent", llm_message=said("assistant", "They differ.")),
    ]


SAMPLES: dict[str, tuple[type[FileSource], Files]] = {
    "openai_chat": (
        OpenAIChatSource,
        {"chat.jsonl": lines(chat_row(), chat_row(session_id="s2", judgment=None))},
    ),
    "openai_chat_list": (
        OpenAIChatSource,
        {"chat.json": document([chat_row(), chat_row(session_id="s2")])},
    ),
    "openai_chat_parquet": (
        OpenAIChatSource,
        {
            "chat.parquet": table(
                [chat_row(messages=json.dumps(CHAT)), chat_row(session_id="s2")][:1]
            )
        },
    ),
    "responses_items": (
        ResponsesSource,
        {"history.jsonl": lines(history_row(), history_row(session_id="h2"))},
    ),
    "sharegpt": (ShareGPTSource, {"sharegpt.jsonl": lines(sharegpt_row(), sharegpt_row(id="g2"))}),
    "sharegpt_arrow": (
        ShareGPTSource,
        {"sharegpt.arrow": table([sharegpt_row(), sharegpt_row(id="g2")], arrow=True)},
    ),
    "api_logs": (ApiLogSource, {"calls.jsonl": lines(logs.logged_call(), logs.logged_call())}),
    "api_logs_responses": (
        ApiLogSource,
        {"responses.jsonl": lines(logs.response_object(), logs.response_object(id="resp_2"))},
    ),
    "api_logs_batch": (ApiLogSource, logs.batch_files()),
    "api_logs_stored": (ApiLogSource, logs.stored_completion_files()),
    "prompt_completion": (
        PromptCompletionSource,
        {"rows.jsonl": lines(logs.trl_row(), logs.trl_row(reward=0.0))},
    ),
    "prompt_completion_preference": (
        PromptCompletionSource,
        {"rows.jsonl": lines(logs.preference_row(), logs.openai_preference_row())},
    ),
    "bare_messages": (BareMessagesSource, {"messages.json": document(CHAT)}),
    "bare_messages_lines": (BareMessagesSource, {"messages.jsonl": lines(CHAT, CHAT)}),
    "nemo_gym": (
        NemoGymSource,
        {
            "rollouts.jsonl": lines(
                logs.nemo_rollout(), logs.nemo_rollout(_ng_rollout_index=2, reward=0.0)
            )
        },
    ),
    "tau_bench": (
        TauBenchSource,
        {"results.json": document([tau_run(0, 0, 0.0), tau_run(0, 1, 1.0)])},
    ),
    "tau2_bench": (Tau2Source, written("tau2")),
    "agentdojo": (
        AgentDojoSource,
        {"runs.jsonl": lines(dojo_run(), dojo_run(user_task_id="user_task_1"))},
    ),
    "inspect_ai_json": (
        InspectSource,
        {
            "log.json": document(
                inspect_header(samples=[inspect_sample(1, "C"), inspect_sample(2, {"a": 1})])
            )
        },
    ),
    "inspect_ai_eval": (
        InspectSource,
        {
            "log.eval": archive(
                {
                    "header.json": inspect_header(),
                    "samples/1_epoch_1.json": inspect_sample(1, "C"),
                    "summaries.json": [],
                }
            )
        },
    ),
    "toolbench": (
        ToolBenchSource,
        {"7_small.json": document(toolbench_answer(True, [LEGACY[:2], LEGACY]))},
    ),
    "swe_agent": (SWEAgentSource, {"shed-1.traj": document(trajectory())}),
    "swink_eval": (
        SwinkSource,
        {
            "results/garden/100.json": document(swink_result(100, "pass", 0.5)),
            "sets/garden.json": document(SWINK_SET),
        },
    ),
    "omniagents_eval": (OmniagentsEvalSource, {"results.json": document(OMNIAGENTS_RESULTS)}),
    "claude_code": (ClaudeCodeSource, {"cc-1.jsonl": lines(*claude_lines())}),
    "codex": (CodexSource, {"rollout-1.jsonl": lines(*codex_lines())}),
    "gemini_cli": (GeminiCLISource, {"session.jsonl": (WRITTEN / "gemini_cli.jsonl").read_bytes()}),
    "mini_swe_agent": (
        SWEAgentSource,
        {"order.traj.json": (WRITTEN / "mini_swe_agent.traj.json").read_bytes()},
    ),
    "atif": (ATIFSource, written("harbor")),
    "openhands": (OpenHandsSource, written("openhands")),
    "claude_stream": (ClaudeStreamSource, {"stream.jsonl": lines(*stream_lines())}),
    "claude_stream_list": (
        ClaudeStreamSource,
        {"claude-execution-output.json": document(stream_lines())},
    ),
    "codex_exec": (CodexExecSource, {"exec.jsonl": lines(*codex_exec_lines())}),
    "copilot_cli": (CopilotCLISource, {"events.jsonl": lines(*copilot_lines())}),
    "opencode": (OpenCodeSource, {"session.json": document(opencode_export())}),
    "opencode_storage": (OpenCodeSource, opencode_storage()),
    "cline": (
        ClineSource,
        {"tasks/1780308000000/api_conversation_history.json": document(cline_messages())},
    ),
    "cline_lines": (ClineSource, {"task.jsonl": lines(*cline_messages())}),
    "goose": (GooseSource, {"20260601_1.jsonl": lines(*goose_lines())}),
    "pi": (PiSource, {"2026-06-01T10-00-00-000Z_pi-1.jsonl": lines(*pi_lines())}),
    "session_trace": (PiSource, {"trace.jsonl": lines(*sts_lines())}),
    "qwen_code": (QwenCodeSource, {"qw-1.jsonl": lines(*qwen_lines())}),
    "iflow": (IFlowSource, {f"{IFLOW_ID}.jsonl": lines(*iflow_lines())}),
    "openhands_lines": (OpenHandsSource, {"conv.jsonl": lines(*openhands_events())}),
}
