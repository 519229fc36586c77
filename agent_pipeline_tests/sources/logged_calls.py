"""Small stores of logged model calls and of training rows, in the forms of gateways, OpenAI's API, TRL, verifiers and NeMo Gym."""

import json
from typing import Any

ANSWER = "Your order is in Ulm."
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}}}
READ = {
    "type": "function",
    "function": {"name": "read", "description": "Read a file", "parameters": PARAMETERS},
}
ASKED: list[dict[str, Any]] = [
    {"role": "system", "content": "You are a shop assistant."},
    {"role": "user", "content": "Where is order 7?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "read", "arguments": '{"path": "order.txt"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "in Ulm"},
]
SAID = [{"role": "assistant", "content": ANSWER}]
ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "Where is order 7?"},
    {
        "type": "function_call",
        "call_id": "c1",
        "name": "read",
        "arguments": '{"path": "order.txt"}',
    },
    {"type": "function_call_output", "call_id": "c1", "output": "in Ulm"},
]
OUTPUT = [
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ANSWER}]}
]


def completion(finish_reason: str = "stop", **more: Any) -> dict[str, Any]:
    """A response of the chat completions API."""
    choice = {"index": 0, "finish_reason": finish_reason, "message": SAID[0]}
    usage = {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
    made = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1768975012, "model": "m-1"}
    return made | {"choices": [choice], "usage": usage} | more


def logged_call(**more: Any) -> dict[str, Any]:
    """A call as NVIDIA's data flywheel logs it; other gateways use the same two names."""
    request = {"model": "m-1", "messages": ASKED, "tools": [READ]}
    return {
        "timestamp": 1768975012,
        "client_id": "shop",
        "workload_id": "support",
        "request": request,
        "response": completion(),
    } | more


def response_object(**more: Any) -> dict[str, Any]:
    """An object of the Responses API, stored with its input."""
    made = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1768975012,
        "model": "m-1",
        "status": "completed",
    }
    read = {"type": "function", "name": "read", "parameters": PARAMETERS}
    return (
        made
        | {
            "instructions": "You are a shop assistant.",
            "tools": [read],
            "input": ITEMS,
            "output": OUTPUT,
        }
        | more
    )


def batch_files(custom_id: str = "order-7", **result: Any) -> dict[str, bytes]:
    """The request and the result file of an OpenAI batch."""
    request = {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": logged_call()["request"],
    }
    answer = {"status_code": 200, "request_id": "req_1", "body": completion()}
    line = {"id": "batch_req_1", "custom_id": custom_id, "response": answer, "error": None} | result
    return {
        "requests.jsonl": json.dumps(request).encode(),
        "results.jsonl": json.dumps(line).encode(),
    }


def stored_completion_files() -> dict[str, bytes]:
    """A page of OpenAI's stored completions, and one of its messages, the latest first."""
    messages = [
        message | {"id": f"chatcmpl-1-{at}", "content_parts": None}
        for at, message in enumerate(ASKED)
    ]
    pages = {
        "completions.json": [completion(request_id="req_1", metadata={})],
        "messages.json": messages[::-1],
    }
    return {
        name: json.dumps({"object": "list", "data": data, "has_more": False}).encode()
        for name, data in pages.items()
    }


def trl_row(**more: Any) -> dict[str, Any]:
    """A rollout of verifiers: TRL's prompt and completion, with a reward."""
    return {
        "prompt": ASKED,
        "completion": SAID,
        "reward": 1.0,
        "task": "orders",
        "example_id": 0,
        "info": {},
    } | more


def preference_row(**more: Any) -> dict[str, Any]:
    return {
        "prompt": ASKED[:2],
        "chosen": SAID,
        "rejected": [{"role": "assistant", "content": "No idea."}],
    } | more


def openai_preference_row() -> dict[str, Any]:
    """A row of OpenAI's format for preference fine-tuning."""
    asked = {"messages": ASKED[:2], "tools": [READ], "parallel_tool_calls": True}
    return {
        "input": asked,
        "preferred_output": SAID,
        "non_preferred_output": [{"role": "assistant", "content": "No idea."}],
    }


def nemo_rollout(**more: Any) -> dict[str, Any]:
    """A rollout of NeMo Gym, whose response has the turns of the whole run."""
    params = {
        "input": [{"role": "system", "content": "You are a shop assistant."}, ITEMS[0]],
        "tools": response_object()["tools"],
    }
    response = response_object(
        output=[*ITEMS[1:], *OUTPUT],
        status=None,
        incomplete_details=None,
        usage={"input_tokens": 5},
    )
    del response["input"], response["instructions"]
    named = {
        "_ng_task_index": 0,
        "_ng_rollout_index": 1,
        "agent_ref": {"type": "responses_api_agents", "name": "shop_agent"},
    }
    return (
        {
            "responses_create_params": params,
            "response": response,
            "reward": 1.0,
            "accuracy": True,
            "set_overlap": 0.5,
        }
        | named
        | more
    )
