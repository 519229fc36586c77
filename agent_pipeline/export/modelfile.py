"""The Modelfile: what `ollama create` reads.

It has no `TEMPLATE`: Ollama runs llama.cpp's server, which renders the chat template inside the GGUF, and `TEMPLATE` would switch that
off, and the tools with it. Only a GGUF without a template of its own gets one, that of its family in Ollama's library.
"""

import re
from collections.abc import Iterable

from agent_pipeline.errors import ExportError

REQUIRES = "0.33.0"
"""From there on, Ollama renders the chat template that is inside the GGUF."""
SMALLEST_CONTEXT = 2048
ANSWER_ROOM = 512
"""Tokens; the longest training row ends with its answer, but a live answer may be longer than that one."""


def context_size(longest_row: int, limit: int | None = None) -> int:
    """`num_ctx` in tokens for a longest training row of `longest_row`: with room for an answer, rounded up to 1,024, at least 2,048.

    At most `limit`, the context that the model was made for.
    """
    wanted = max(-(-(longest_row + ANSWER_ROOM) // 1024) * 1024, SMALLEST_CONTEXT)
    return min(wanted, limit) if limit else wanted


def modelfile(gguf_name: str, stops: Iterable[str], num_ctx: int, template: str | None = None) -> str:
    """The text of a Modelfile beside the GGUF `gguf_name`; `template` is a Go template for a GGUF that has none of its own.

    No temperature is set: how a model is sampled is its user's affair, what it was trained on is not.
    """
    lines = [f"REQUIRES {REQUIRES}", f"FROM ./{gguf_name}"]
    if template:
        lines.append(f"TEMPLATE {quote(template)}")
    lines += [f"PARAMETER stop {quote(stop)}" for stop in stops]
    return "\n".join([*lines, f"PARAMETER num_ctx {num_ctx}"]) + "\n"


def quote(text: str) -> str:
    """A value in triple quotes.

    Raises:
        ExportError: the text would come out changed. Ollama ends a value at the first line break before which it ends with three quotes
            (white space aside), and drops characters that are not printable.
    """
    quoted = f'"""{text}"""'
    if re.search(r'"""(?=\s*[\r\n])', text) or any(not char.isprintable() and char not in "\n\r\t " for char in text):
        raise ExportError(
            f"A Modelfile can't hold the value {text[:60]!r}, which has three quotes at a line's end or an unprintable "
            "character: change the chat template or the stop token."
        )
    return quoted
