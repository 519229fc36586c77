"""Small sessions of coding agents, in the exact form of each tool: one request, one call, its result, one answer."""

import json
from typing import Any

ASKED, ANSWER, READ = "Where is order 7?", "Order 7 is in Ulm.", "order 7: in Ulm"
TIME = "2026-06-01T10:00:{:02d}.000Z"


def pi_lines() -> list[dict[str, Any]]:
    """A session of pi, version 3 of its format."""
    call = {"type": "toolCall", "id": "t1", "name": "read", "arguments": {"path": "order.txt"}}
    usage = {
        "input": 10,
        "output": 2,
        "cacheRead": 0,
        "cacheWrite": 0,
        "totalTokens": 12,
        "cost": {"total": 0.01},
    }
    made = {"api": "anthropic-messages", "provider": "anthropic", "model": "m-1", "usage": usage}
    result = {"role": "toolResult", "toolCallId": "t1", "toolName": "read", "isError": False}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": ASKED}], "timestamp": 1},
        {
            "role": "assistant",
            "content": [{"type": "thinking", "thinking": "Read it."}, call],
            "stopReason": "toolUse",
            **made,
        },
        result | {"content": [{"type": "text", "text": READ}]},
        {
            "role": "assistant",
            "content": [{"type": "text", "text": ANSWER}],
            "stopReason": "stop",
            **made,
        },
    ]
    head = {
        "type": "session",
        "version": 3,
        "id": "pi-1",
        "timestamp": TIME.format(0),
        "cwd": "/w/shop",
    }
    entries = [
        {
            "type": "message",
            "id": f"e{at}",
            "parentId": f"e{at - 1}" if at else None,
            "timestamp": TIME.format(at + 1),
            "message": message,
        }
        for at, message in enumerate(messages)
    ]
    return [head, *entries]


def sts_lines() -> list[dict[str, Any]]:
    """The same in the Hub's Session Trace Simple Format."""
    call = {"id": "t1", "function": {"name": "read", "arguments": '{"path": "order.txt"}'}}
    messages = [
        {"role": "user", "content": ASKED},
        {
            "role": "assistant",
            "content": "",
            "reasoningContent": "Read it.",
            "toolCalls": [call],
            "model": "m-1",
        },
        {"role": "tool", "toolCallId": "t1", "content": READ},
        {"role": "assistant", "content": ANSWER, "timestamp": 1767323046000, "model": "m-1"},
    ]
    return [
        {"type": "session", "harness": "my-agent", "id": "sts-1"},
        *({"type": "message", "message": each} for each in messages),
    ]


def stream_lines() -> list[dict[str, Any]]:
    """What `claude -p --output-format stream-json --replay-user-messages` prints."""
    usage = {"input_tokens": 10, "output_tokens": 2}

    def line(number: int, kind: str, message: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": kind,
            "message": message,
            "parent_tool_use_id": None,
            "session_id": "st-1",
            "uuid": f"u{number}",
        }

    def said(name: str, *blocks: dict[str, Any]) -> dict[str, Any]:
        made = {
            "id": name,
            "type": "message",
            "role": "assistant",
            "model": "m-1",
            "content": list(blocks),
        }
        return made | {"stop_reason": None, "usage": usage}

    call = {"type": "tool_use", "id": "t1", "name": "Read", "input": {"file_path": "order.txt"}}
    head = {
        "type": "system",
        "subtype": "init",
        "session_id": "st-1",
        "cwd": "/w/shop",
        "tools": ["Read"],
        "mcp_servers": [],
    }
    end = {
        "type": "result",
        "subtype": "success",
        "is_error": False,
        "duration_ms": 1,
        "num_turns": 2,
        "result": ANSWER,
    }
    return [
        head | {"model": "m-1", "permissionMode": "default", "uuid": "u0"},
        line(1, "user", {"role": "user", "content": [{"type": "text", "text": ASKED}]}),
        line(2, "assistant", said("m1", {"type": "thinking", "thinking": "Read it."})),
        line(3, "assistant", said("m1", call)),
        line(
            4,
            "user",
            {
                "role": "user",
                "content": [{"tool_use_id": "t1", "type": "tool_result", "content": READ}],
            },
        ),
        line(5, "assistant", said("m2", {"type": "text", "text": ANSWER})),
        end
        | {
            "session_id": "st-1",
            "total_cost_usd": 0.01,
            "usage": {"input_tokens": 20, "output_tokens": 4},
            "uuid": "u6",
        },
    ]


def codex_exec_lines() -> list[dict[str, Any]]:
    """What `codex exec --json` prints."""
    ran = {
        "id": "item_1",
        "type": "command_execution",
        "command": "cat order.txt",
        "aggregated_output": READ,
        "exit_code": 0,
    }
    return [
        {"type": "thread.started", "thread_id": "ex-1"},
        {"type": "turn.started"},
        {
            "type": "item.completed",
            "item": {"id": "item_0", "type": "reasoning", "text": "**Looking**"},
        },
        {
            "type": "item.started",
            "item": ran | {"aggregated_output": "", "exit_code": None, "status": "in_progress"},
        },
        {"type": "item.completed", "item": ran | {"status": "completed"}},
        {
            "type": "item.completed",
            "item": {"id": "item_2", "type": "agent_message", "text": ANSWER},
        },
        {
            "type": "turn.completed",
            "usage": {"input_tokens": 20, "cached_input_tokens": 0, "output_tokens": 4},
        },
    ]


def copilot_lines() -> list[dict[str, Any]]:
    """Events of Copilot CLI 1.0."""
    call = {
        "toolCallId": "t1",
        "name": "view",
        "arguments": {"path": "order.txt"},
        "type": "function",
    }
    start = {
        "sessionId": "co-1",
        "version": 1,
        "producer": "copilot-agent",
        "copilotVersion": "1.0.95-2",
        "context": {"cwd": "/w/shop"},
    }
    told = [
        ("session.start", start),
        ("system.message", {"role": "system", "content": "You help."}),
        (
            "user.message",
            {
                "content": ASKED,
                "transformedContent": f"<current_datetime>..</current_datetime>\n\n{ASKED}",
            },
        ),
        ("assistant.turn_start", {"turnId": "0"}),
        (
            "assistant.message",
            {
                "messageId": "m1",
                "model": "m-1",
                "content": "",
                "reasoningText": "Read it.",
                "toolRequests": [call],
            },
        ),
        (
            "tool.execution_start",
            {"toolCallId": "t1", "toolName": "view", "arguments": {"path": "order.txt"}},
        ),
        (
            "tool.execution_complete",
            {
                "toolCallId": "t1",
                "success": True,
                "result": {"content": READ, "detailedContent": "diff"},
            },
        ),
        ("assistant.message", {"messageId": "m2", "content": ANSWER, "toolRequests": []}),
    ]
    return [
        {
            "type": kind,
            "data": data,
            "id": f"e{at}",
            "timestamp": TIME.format(at),
            "parentId": f"e{at - 1}" if at else None,
        }
        for at, (kind, data) in enumerate(told)
    ]


def opencode_export() -> dict[str, Any]:
    """What `opencode export` prints."""
    state = {
        "status": "completed",
        "input": {"filePath": "order.txt"},
        "output": READ,
        "title": "order.txt",
        "metadata": {},
    }
    tokens = {"input": 10, "output": 2, "reasoning": 0, "cache": {"read": 0, "write": 0}}

    def message(number: int, role: str, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
        info = {
            "id": f"msg_{number}",
            "sessionID": "ses_1",
            "role": role,
            "time": {"created": 1780308000000 + number},
        } | more
        told = [
            {"id": f"prt_{number}{at}", "sessionID": "ses_1", "messageID": f"msg_{number}"} | part
            for at, part in enumerate(parts)
        ]
        return {"info": info, "parts": told}

    made = {"modelID": "m-1", "providerID": "p", "mode": "build", "cost": 0.01, "tokens": tokens}
    tool = {
        "type": "tool",
        "callID": "t1",
        "tool": "read",
        "state": state | {"time": {"start": 1, "end": 2}},
    }
    end = {"type": "step-finish", "reason": "tool-calls", "cost": 0.01, "tokens": tokens}
    return {
        "info": {
            "id": "ses_1",
            "projectID": "p",
            "directory": "/w/shop",
            "title": "t",
            "version": "1.3.0",
        }
        | {"time": {"created": 1780308000000, "updated": 1780308009000}},
        "messages": [
            message(1, "user", {"type": "text", "text": ASKED}, agent="build"),
            message(
                2,
                "assistant",
                {"type": "step-start"},
                {"type": "reasoning", "text": "Read it."},
                tool,
                end,
                finish="tool-calls",
                **made,
            ),
            message(
                3,
                "assistant",
                {"type": "step-start"},
                {"type": "text", "text": ANSWER},
                finish="stop",
                **made,
            ),
        ],
    }


def opencode_storage() -> dict[str, bytes]:
    """The same session in the folder `storage`."""
    export = opencode_export()
    files = {"storage/session/p/ses_1.json": export["info"]}
    for message in export["messages"]:
        files[f"storage/message/ses_1/{message['info']['id']}.json"] = message["info"]
        for part in message["parts"]:
            files[f"storage/part/{part['messageID']}/{part['id']}.json"] = part
    return {name: json.dumps(value, indent=2).encode() for name, value in files.items()}


def cline_messages() -> list[dict[str, Any]]:
    """The messages of a task of Cline."""
    call = {"type": "tool_use", "id": "t1", "name": "read_file", "input": {"path": "order.txt"}}
    files = "# Current Working Directory (/w/shop) Files\norder.txt"
    details = {"type": "text", "text": f"<environment_details>\n{files}\n</environment_details>"}
    told = [
        ("user", [{"type": "text", "text": f"<task>\n{ASKED}\n</task>"}, details]),
        ("assistant", [{"type": "text", "text": "Let me look."}, call]),
        ("user", [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": READ}]}]),
        ("assistant", [{"type": "text", "text": ANSWER}]),
    ]  # fmt: skip
    return [
        {"role": role, "content": content, "ts": 1780308000000 + at}
        for at, (role, content) in enumerate(told)
    ]


def goose_lines() -> list[dict[str, Any]]:
    """A session of Goose in a file."""
    call = {
        "status": "success",
        "value": {"name": "developer__shell", "arguments": {"command": "cat order.txt"}},
    }
    result = {"status": "success", "value": [{"type": "text", "text": READ}]}
    told = [
        ("user", {"type": "text", "text": ASKED}),
        ("assistant", {"type": "toolRequest", "id": "t1", "toolCall": call}),
        ("user", {"type": "toolResponse", "id": "t1", "toolResult": result}),
        ("assistant", {"type": "text", "text": ANSWER}),
    ]
    head = {
        "working_dir": "/w/shop",
        "description": "orders",
        "message_count": 4,
        "total_tokens": 12,
        "input_tokens": 10,
        "output_tokens": 2,
    }
    return [
        head,
        *(
            {"role": role, "created": 1780308000 + at, "content": [part]}
            for at, (role, part) in enumerate(told)
        ),
    ]


def qwen_lines() -> list[dict[str, Any]]:
    """A session of Qwen Code 0.15."""
    call = {"functionCall": {"id": "t1", "name": "read_file", "args": {"path": "order.txt"}}}
    answer = {"functionResponse": {"id": "t1", "name": "read_file", "response": {"output": READ}}}
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 2, "totalTokenCount": 12}
    telemetry = {
        "uiEvent": {"event.name": "qwen-code.api_response", "model": "m-1", "duration_ms": 3}
    }
    told: list[dict[str, Any]] = [
        {"type": "user", "message": {"role": "user", "parts": [{"text": ASKED}]}},
        {"type": "system", "subtype": "ui_telemetry", "systemPayload": telemetry},
        {"type": "assistant", "model": "m-1", "usageMetadata": usage}
        | {"message": {"role": "model", "parts": [{"text": "Read it.", "thought": True}, call]}},
        {
            "type": "tool_result",
            "message": {"role": "user", "parts": [answer]},
            "toolCallResult": {"callId": "t1", "status": "success"},
        },
        {
            "type": "assistant",
            "model": "m-1",
            "usageMetadata": usage,
            "message": {"role": "model", "parts": [{"text": ANSWER}]},
        },
    ]
    base = {"sessionId": "qw-1", "cwd": "/w/shop", "version": "0.15.6"}
    return [
        base
        | {
            "uuid": f"u{at}",
            "parentUuid": f"u{at - 1}" if at else None,
            "timestamp": TIME.format(at),
        }
        | line
        for at, line in enumerate(told)
    ]


IFLOW_ID = "session-5de701fc-7454-4858-a249-95cac4fd3b51"


def iflow_lines() -> list[dict[str, Any]]:
    """A session of iFlow: each line of the streamed answer repeats a part of the line before."""

    def call(name: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": name, "name": "read_file", "input": {"path": name}}

    def result(name: str, output: str) -> dict[str, Any]:
        answered = {"id": name, "name": "read_file", "response": {"output": output}}
        kept = {
            "callId": name,
            "responseParts": {"functionResponse": answered},
            "resultDisplay": "",
        }
        return {
            "role": "user",
            "content": [{"tool_use_id": name, "type": "tool_result", "content": kept}],
        }

    def said(name: str, *blocks: dict[str, Any]) -> dict[str, Any]:
        made = {
            "id": f"response-{name}",
            "type": "message",
            "role": "assistant",
            "content": list(blocks),
            "model": "m-1",
        }
        return made | {"stop_reason": None, "usage": {"input_tokens": 0, "output_tokens": 0}}

    told: list[tuple[str, str | None, dict[str, Any]]] = [
        ("user", None, {"role": "user", "content": ASKED}),
        ("assistant", "u0", said("1", {"type": "text", "text": "I read both."}, call("a"))),
        ("assistant", "u0", said("2", call("a"), call("b"))),
        ("assistant", "u0", said("3", call("b"))),
        ("user", "u3", result("a", READ)),
        ("user", "u3", result("b", "nothing")),
        ("assistant", "u0", said("4", {"type": "text", "text": ANSWER})),
    ]
    base = {
        "sessionId": IFLOW_ID,
        "isSidechain": False,
        "userType": "external",
        "cwd": "C:\\w\\shop",
        "version": "1.0.0",
    }
    return [
        base
        | {
            "type": kind,
            "uuid": f"u{at}",
            "parentUuid": parent,
            "timestamp": TIME.format(at),
            "message": message,
        }
        for at, (kind, parent, message) in enumerate(told)
    ]
