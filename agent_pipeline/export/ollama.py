"""The registration of an exported GGUF with Ollama, if Ollama is installed.

It is not an error if Ollama is not installed, because the GGUF and its Modelfile are complete
without it. It is an error if the registration fails.
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
"""Timeout in seconds. Ollama loads a model before it renders a prompt for it."""

LONGEST_NAME = 80
"""Maximum number of characters in a model name that Ollama accepts."""

REQUIRES = "0.33.0"
"""The first version of Ollama that renders the chat template inside the GGUF."""
SMALLEST_CONTEXT = 2048
ANSWER_ROOM = 512
"""Number of tokens that are added to the longest training row, because a live answer may be longer
than the answer in the row.
"""


class OllamaResult(msgspec.Struct):
    """The result of registering a model with Ollama.

    Attributes:
        name: The name of the model.
        created: Whether Ollama has the model.
        text: A sentence that says what happened or what to do.
    """

    name: str
    created: bool
    text: str


def context_size(longest_row: int, limit: int | None = None) -> int:
    """Return `num_ctx` in tokens: the longest training row plus room for an answer, rounded up to
    1,024, and at least 2,048.

    The result is at most `limit`, the context that the model supports.
    """
    wanted = max(-(-(longest_row + ANSWER_ROOM) // 1024) * 1024, SMALLEST_CONTEXT)
    return min(wanted, limit) if limit else wanted


def modelfile(
    gguf_name: str, stops: Iterable[str], num_ctx: int, template: str | None = None
) -> str:
    """Return the text of the Modelfile for `ollama create`.

    The Modelfile has no `TEMPLATE`. Ollama runs llama.cpp's server, which renders the chat template
    inside the GGUF, and `TEMPLATE` would disable this template and the tools. Only a GGUF without a
    chat template gets a `TEMPLATE`. No temperature is set, because users choose how they sample.

    Args:
        gguf_name: The name of the GGUF in the same folder.
        stops: The tokens that end an answer.
        num_ctx: The context in tokens.
        template: The Go template of the model's family in Ollama's library, for a GGUF without a
            chat template.
    """
    lines = [f"REQUIRES {REQUIRES}", f"FROM ./{gguf_name}"]
    if template:
        lines.append(f"TEMPLATE {quote(template)}")
    lines += [f"PARAMETER stop {quote(stop)}" for stop in stops]
    return "\n".join([*lines, f"PARAMETER num_ctx {num_ctx}"]) + "\n"


def quote(text: str) -> str:
    """Put a value of a Modelfile in triple quotes.

    Raises:
        ExportError: Ollama would read another value. Ollama ends a value at three quotes before a
            line break (white space is ignored), and it drops characters that are not printable.
    """
    quoted = f'"""{text}"""'
    if re.search(r'"""(?=\s*[\r\n])', text) or any(
        not char.isprintable() and char not in "\n\r\t " for char in text
    ):
        raise ExportError(
            f"A Modelfile cannot contain the value {text[:60]!r}, because it has an unprintable "
            "character, or three quotes at the end of a line: change the chat template or the "
            "stop token."
        )
    return quoted


def model_name(project: str, agent: str) -> str:
    """Return a model name that Ollama accepts, such as `tau-airline` for `tau/airline`.

    The name consists of lower-case letters, digits, `.`, `_` and `-`.

    Raises:
        ExportError: No valid character is left.
    """
    name = (
        re.sub(r"[^a-z0-9._-]+", "-", f"{project}-{agent}".lower())
        .strip("-._")[:LONGEST_NAME]
        .rstrip("-._")
    )
    if not name:
        raise ExportError(
            f"The names of the project '{project}' and the agent '{agent}' cannot form the name "
            "of an Ollama model, because they contain neither a letter from a to z nor a digit: "
            "give the model a name of your own."
        )
    return name


def create(name: str, modelfile_path: Path) -> OllamaResult:
    """Run `ollama create name -f modelfile` if the program `ollama` is on PATH.

    Raises:
        ExportError: The command fails. The message has the step, the last line and the remedy.
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
            f"The program ollama is not on PATH, so {name} was not registered: install Ollama and "
            f"run "
            f"`{by_hand}`.",
        )
    # In the Modelfile's folder, because its FROM names the GGUF next to it.
    done = run(
        [ollama, "create", name, "-f", str(modelfile_path.resolve())], cwd=modelfile_path.parent
    )
    if done.returncode != 0:
        reason = plain(last_line(done)) or "nothing"
        raise ExportError(
            f"The command `ollama create {name}` failed with exit code {done.returncode} (last "
            f"line: '{reason}'): start Ollama (`ollama serve`), then run `{by_hand}`."
        )
    return OllamaResult(name, True, f"Ollama has {name}: to try it, run `ollama run {name}`.")


def check_rendering(name: str, renderer: ChatRenderer, system: str = "") -> str:
    """Check that Ollama renders a tool call and its result with the prompt of training, and return
    a sentence about the result.

    If the Modelfile has a system prompt, Ollama adds it to the conversation.

    No answer is generated: Ollama's `_debug_render_only` is used
    (https://github.com/ollama/ollama/blob/main/api/types.go).

    Raises:
        ExportError: The prompts differ.
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
        return f"Ollama's prompt was not checked: {url} did not return it ({error})."
    messages = cast(list[Message], ROUND_TRIP)
    if system:
        messages = [{"role": "system", "content": system}, *messages]
    here = remove_marks(renderer.render(messages, [TOOL], add_generation_prompt=True))
    if here != there:
        raise ExportError(
            f"Ollama renders a prompt of {name} differently than training did, "
            f"{first_difference(here, there)}: do not use this model in Ollama."
        )
    return "Ollama renders a tool call and its result as training did."


def library_template(name: str) -> str | None:
    """Return the Go template of a model in Ollama's library.

    Return None if `ollama` is not on PATH, if Ollama does not have the model, or if a Modelfile
    cannot contain the template.
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
    """Return a line of terminal output without colors and cursor movements."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).strip()
