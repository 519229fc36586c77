"""The files that show a client the requests that a served model was trained for.

    system_prompt.txt   the system prompt of training
    tools.json          the tools of training, in the order of training
    example.py          a program that sends both to the server

What a model was trained for is recorded in `datasets.requests`.
"""

import json
from pprint import pformat

from agent_pipeline.datasets.requests import TrainedRequests
from agent_pipeline.errors import ExportError
from agent_pipeline.export.ollama import quote
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction.kinds import PSEUDONYM

SYSTEM_PROMPT = "system_prompt.txt"
TOOLS = "tools.json"
EXAMPLE = "example.py"
REQUEST_FILES = (SYSTEM_PROMPT, TOOLS, EXAMPLE)

_EXAMPLE = '''\
"""Ask the model {key} what it was trained for: with the system prompt and the tools of training.

Install the client with `pip install openai`, and run:

    python example.py "Your message"
"""

import json
import os
import sys
from pathlib import Path

from openai import OpenAI

# llama-server; vLLM and Ollama have other addresses.
SERVER = os.environ.get("SERVER", "http://127.0.0.1:8080/v1")
MODEL = os.environ.get("MODEL", {model})
{notes}
folder = Path(__file__).parent
system_prompt = (folder / "{prompt_file}").read_text(encoding="utf-8")
request = {{"model": MODEL, "temperature": 0}}
request["messages"] = [{{"role": "user", "content": " ".join(sys.argv[1:]) or "Hello."}}]
if system_prompt:
    request["messages"].insert(0, {{"role": "system", "content": system_prompt}})
if tools := json.loads((folder / "{tools_file}").read_text(encoding="utf-8")):
    request["tools"] = tools
answer = OpenAI(base_url=SERVER, api_key="none").chat.completions.create(**request)
print(answer.choices[0].message.to_json())
'''


def make_request_files(key: PartitionKey, requests: TrainedRequests | None) -> dict[str, str]:
    """Return the texts of the files by name. Without a record of the requests, no files are
    returned.
    """
    if requests is None:
        return {}
    example = _EXAMPLE.format(
        key=key,
        model=json.dumps(str(key), ensure_ascii=False),
        notes=_write_notes(requests),
        prompt_file=SYSTEM_PROMPT,
        tools_file=TOOLS,
    )
    return {
        SYSTEM_PROMPT: requests.system_prompt,
        TOOLS: _write_tools(requests),
        EXAMPLE: example,
    }


def _write_tools(requests: TrainedRequests) -> str:
    return json.dumps(requests.usual_tools, indent=2, ensure_ascii=False) + "\n"


def _write_notes(requests: TrainedRequests) -> str:
    """Return comments about what a client has to change in the system prompt and the tools."""
    notes = []
    if values := requests.varying_values:
        notes.append(
            f"These parts of {SYSTEM_PROMPT} differ from session to session. Write your own:"
        )
        notes += pformat(values, width=90).splitlines()
    texts = {SYSTEM_PROMPT: requests.system_prompt, TOOLS: _write_tools(requests)}
    for file, text in texts.items():
        if pseudonyms := dict.fromkeys(match[0] for match in PSEUDONYM.finditer(text)):
            notes.append(f"These values of {file} were redacted. Write the real values:")
            notes += pformat(list(pseudonyms), width=90).splitlines()
    others = len(requests.prompts) - 1
    if others > 0:
        sessions = requests.sessions - requests.prompts[0].sessions
        notes.append(
            f"{sessions} of {requests.sessions} training sessions had another system prompt."
        )
    return "".join(f"\n# {note}" for note in notes) + ("\n" if notes else "")


def write_system_line(requests: TrainedRequests | None) -> str:
    """Return the line `SYSTEM` of a Modelfile, or an empty text.

    Ollama adds this system prompt to a request without a system message. There is no such line if
    the system prompt differs from session to session, or if a Modelfile cannot contain it.
    """
    system = find_fixed_prompt(requests)
    try:
        return f"SYSTEM {quote(system)}\n" if system else ""
    except ExportError:
        return ""


def find_fixed_prompt(requests: TrainedRequests | None) -> str:
    """Return the system prompt if all training sessions had the same one, or an empty text."""
    if requests is None or len(requests.prompts) != 1 or requests.prompts[0].parts:
        return ""
    return requests.system_prompt
