"""Registers an exported GGUF with Ollama, where there is one.

Not having Ollama is not a failure: the GGUF and its Modelfile are complete without it. A
registration that was tried and failed is one.
"""

import json
import os
import re
import shutil
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from agent_pipeline.errors import ExportError
from agent_pipeline.export.converter import last_line, run
from agent_pipeline.export.parity import first_difference
from agent_pipeline.json_types import JsonObject
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.models.special_tokens import remove_marks
from agent_pipeline.sessions.session import Message, Tool

if TYPE_CHECKING:
    pass

TOOL: Tool = {
    "type": "function",
    "function": {
        "name": "ping",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
    },
}
ROUND_TRIP: list[JsonObject] = [
    {"role": "user", "content": "ping"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "ping", "arguments": {"n": 1}}}],
    },
    {"role": "tool", "content": "pong"},
]
SECONDS = 120.0
"""Ollama loads a model before it renders for it."""

LONGEST_NAME = 80
"""Characters that Ollama takes for a model's name."""

REQUIRES = "0.33.0"
"""From there on, Ollama renders the chat template that is inside the GGUF."""
SMALLEST_CONTEXT = 2048
ANSWER_ROOM = 512
"""Tokens; the longest training row ends with its answer, but a live answer may be longer than that
one.
"""


class OllamaResult(msgspec.Struct):
    """`created`: Ollama has the model `name` now; `text`: what happened, or what to do, in a
    sentence.
    """

    name: str
    created: bool
    text: str


def context_size(longest_row: int, limit: int | None = None) -> int:
    """`num_ctx` in tokens for a longest training row of `longest_row`: with room for an answer,
    rounded up to 1,024, at least 2,048.

    At most `limit`, the context that the model was made for.
    """
    wanted = max(-(-(longest_row + ANSWER_ROOM) // 1024) * 1024, SMALLEST_CONTEXT)
    return min(wanted, limit) if limit else wanted


def modelfile(
    gguf_name: str, stops: Iterable[str], num_ctx: int, template: str | None = None
) -> str:
    """The text of a Modelfile, which `ollama create` reads, beside the GGUF `gguf_name`.

    It has no `TEMPLATE`: Ollama runs llama.cpp's server, which renders the chat template inside the
    GGUF, and `TEMPLATE` would switch that off, and the tools with it. Only a GGUF without a
    template of its own gets one, the Go `template` of its family in Ollama's library. No
    temperature is set: how a model is sampled is its user's affair, what it was trained on is not.
    """
    lines = [f"REQUIRES {REQUIRES}", f"FROM ./{gguf_name}"]
    if template:
        lines.append(f"TEMPLATE {quote(template)}")
    lines += [f"PARAMETER stop {quote(stop)}" for stop in stops]
    return "\n".join([*lines, f"PARAMETER num_ctx {num_ctx}"]) + "\n"


def quote(text: str) -> str:
    """A value in triple quotes.

    Raises:
        ExportError: the text would come out changed. Ollama ends a value at the first line break
        before which it ends with three quotes
            (white space aside), and drops characters that are not printable.
    """
    quoted = f'"""{text}"""'
    if re.search(r'"""(?=\s*[\r\n])', text) or any(
        not char.isprintable() and char not in "\n\r\t " for char in text
    ):
        raise ExportError(
            f"A Modelfile can't hold the value {text[:60]!r}, which has three quotes at a line's "
            f"end or an unprintable "
            "character: change the chat template or the stop token."
        )
    return quoted


def model_name(project: str, agent: str) -> str:
    """`tau/airline` → `tau-airline`: a name that Ollama takes, lower case, of letters, digits, `.`,
    `_` and `-`.

    Raises `ExportError` where nothing is left.
    """
    name = (
        re.sub(r"[^a-z0-9._-]+", "-", f"{project}-{agent}".lower())
        .strip("-._")[:LONGEST_NAME]
        .rstrip("-._")
    )
    if not name:
        raise ExportError(
            f"No Ollama model can be named after project '{project}' and agent '{agent}', which "
            f"have no letter or digit of "
            "a to z or 0 to 9: give the model a name of your own."
        )
    return name


def create(name: str, modelfile_path: Path) -> OllamaResult:
    """`ollama create name -f modelfile`, where an `ollama` is on PATH.

    Raises `ExportError` where it fails: the step, its last line and what to do.
    """
    if not modelfile_path.is_file():
        raise ExportError(
            f"There is no Modelfile at {modelfile_path}: export the model to GGUF first."
        )
    ollama = shutil.which("ollama")
    by_hand = f"ollama create {name} -f {modelfile_path}"
    if not ollama:
        return OllamaResult(
            name,
            False,
            f"No ollama is on PATH, so {name} was not registered: install Ollama and run "
            f"`{by_hand}`.",
        )
    # From the Modelfile's folder: its FROM names the GGUF beside it.
    done = run(
        [ollama, "create", name, "-f", str(modelfile_path.resolve())], cwd=modelfile_path.parent
    )
    if done.returncode != 0:
        reason = plain(last_line(done)) or "nothing"
        raise ExportError(
            f"The step `ollama create {name}` failed with exit code {done.returncode}, its last "
            f"line being '{reason}': see "
            f"that Ollama runs (`ollama serve`), then run `{by_hand}`."
        )
    return OllamaResult(name, True, f"Ollama has {name}: try `ollama run {name}`.")


def check_rendering(name: str, renderer: ChatRenderer) -> str:
    """Whether Ollama makes the prompt of a tool's round trip that the model `name` was trained on,
    in a sentence; nothing is answered.

    It asks by `_debug_render_only` (https://github.com/ollama/ollama/blob/main/api/types.go).

    Raises:
        ExportError: the prompts differ.
    """
    address = os.environ.get("OLLAMA_HOST") or "127.0.0.1:11434"
    url = f"{address if '://' in address else f'http://{address}'}/api/chat"
    body = {
        "model": name,
        "messages": ROUND_TRIP,
        "tools": [TOOL],
        "stream": False,
        "_debug_render_only": True,
    }
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            request, timeout=SECONDS
        ) as response:
            there = json.load(response)["_debug_info"]["rendered_template"]
    except (OSError, ValueError, KeyError) as error:
        return f"What Ollama renders was not compared: {url} did not say it ({error})."
    here = remove_marks(
        renderer.render(cast(list[Message], ROUND_TRIP), [TOOL], add_generation_prompt=True)
    )
    if here != there:
        raise ExportError(
            f"Ollama renders a prompt of {name} otherwise than training did, "
            f"{first_difference(here, there)}: do not use it."
        )
    return "Ollama renders a tool's round trip as training did."


def library_template(name: str) -> str | None:
    """The Go template of the model `name` of Ollama's library; None where no ollama is on PATH, it
    does not have that model, or a Modelfile cannot hold the template.
    """
    ollama = shutil.which("ollama")
    if not ollama:
        return None
    done = run([ollama, "show", "--template", name])
    template = done.stdout.strip() if done.returncode == 0 else ""
    try:
        quote(template)
    except ExportError:
        return None
    return template or None


def plain(line: str) -> str:
    """A terminal's line without its colours and cursor movements."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).strip()
