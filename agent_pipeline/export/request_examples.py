"""Examples of requests to a served model, as a command of curl and as Python.

Starting a server belongs to `model_server`.
"""

import json
import shlex
from collections.abc import Sequence
from typing import Any

from agent_pipeline.sessions.session import Message, Tool


def make_curl_example(
    url: str, model: str, messages: Sequence[Message], tools: Sequence[Tool], key_variable: str = ""
) -> str:
    """Return a curl command that asks a served model.

    Args:
        url: The address of the server.
        model: The name of the model.
        messages: The conversation.
        tools: The tools that the model may call.
        key_variable: The environment variable with the key of the server; empty for no key.
    """
    body: dict[str, Any] = {"model": model, "temperature": 0, "messages": list(messages)}
    if tools:
        body["tools"] = list(tools)
    key = f' -H "Authorization: Bearer ${key_variable}"' if key_variable else ""
    return (
        f"curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} "
        f"-d {shlex.quote(json.dumps(body, ensure_ascii=False))}"
    )


def make_python_example(
    url: str, model: str, messages: Sequence[Message], tools: Sequence[Tool], key_variable: str = ""
) -> str:
    """Return a Python program that asks a served model, with the arguments of the curl example."""
    given_tools = f"\n    tools={list(tools)!r}," if tools else ""
    head, api_key = "", "'none'"
    if key_variable:
        head, api_key = "import os\n\n", f"os.environ[{key_variable!r}]"
    return f"""\
{head}from openai import OpenAI

client = OpenAI(base_url={f"{url}/v1"!r}, api_key={api_key})
completion = client.chat.completions.create(
    model={model!r},
    temperature=0,
    messages={list(messages)!r},{given_tools}
)
print(completion.choices[0].message)"""
