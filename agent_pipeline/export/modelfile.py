"""The Modelfile: what `ollama create` reads.

It has no `TEMPLATE`: Ollama runs llama.cpp's server, which renders the chat template inside the GGUF, and `TEMPLATE` would switch that
off, and the tools with it. Only a GGUF without a template of its own gets one, that of its family in Ollama's library.

The one hard part is quoting. A value in triple quotes ends at the first line break before which the text so far ends with three quotes
(white space aside), and characters that Go does not call printable are dropped, white space aside. So a Go template is first rewritten
into an equivalent one that has neither. https://github.com/ollama/ollama/blob/main/docs/modelfile.md, Go's `text/template` and `strconv`.
"""

import json
import re
from collections.abc import Iterable

from agent_pipeline.errors import ExportError

REQUIRES = "0.33.0"
SMALLEST_CONTEXT = 2048
ANSWER_ROOM = 512
"""Tokens; the longest training row ends with its answer, but a live answer may be longer than that one."""

# A Go template is text and actions; inside an action, quotes and comments may hold the closing braces.
TOKENS = re.compile(
    r"""(?P<comment>\{\{(?:-\s)?\s*/\*.*?\*/\s*(?:-)?\}\})"""
    r"""|(?P<action>\{\{(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`[^`]*`|(?!\}\}).)*?\}\})"""
    r"""|(?P<text>(?:(?!\{\{).)+)""",
    re.DOTALL,
)
INSIDE = re.compile(r""""(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`[^`]*`""", re.DOTALL)
CLOSES = re.compile(r'"""(?=\s*[\r\n])')
UNPRINTABLE_KEPT = "\n\r\t "


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
    lines = [f"# REQUIRES {REQUIRES}: from there on, Ollama renders the chat template that is inside the GGUF.", f"FROM ./{gguf_name}"]
    if template:
        lines.append(f"TEMPLATE {quote(portable(template))}")
    lines += [f"PARAMETER stop {quote(stop)}" for stop in stops]
    return "\n".join([*lines, f"PARAMETER num_ctx {num_ctx}"]) + "\n"


def quote(text: str) -> str:
    """A value in triple quotes.

    Raises `ExportError` for a text that would come out changed; a template never does after `portable`.
    """
    quoted = f'"""{text}"""'
    if CLOSES.search(text) or any(not char.isprintable() and char not in UNPRINTABLE_KEPT for char in text):
        raise ExportError(
            f"A Modelfile can't hold the value {text[:60]!r}, which has three quotes at a line's end or an unprintable "
            "character: change the chat template or the stop token."
        )
    return quoted


def portable(template: str) -> str:
    """An equivalent Go template that survives quoting: what Ollama would drop or stumble over is written as Go string escapes."""
    return "".join(_portable(match) for match in TOKENS.finditer(template))


def _portable(match: re.Match) -> str:
    part = match.group()
    if match.lastgroup == "comment":
        # Its words go, it stays: it keeps apart, or trims, what is beside it.
        return ("{{- " if part.startswith("{{-") else "{{") + "/**/" + (" -}}" if part.endswith("-}}") else "}}")
    if match.lastgroup == "action":
        return INSIDE.sub(lambda literal: _escaped_literal(literal.group()), part)
    # A comment between the quotes and the line break renders as nothing. Braces just before an unprintable character go into its
    # action, which they would open too early; white space stays outside, where a neighbour may trim it.
    part = CLOSES.sub('"""{{/**/}}', part)
    return re.sub(r"(\{*)([^ -~\t\r\n]+)", lambda m: "{{" + go_string(m.group()) + "}}" if _unprintable(m[2]) else m.group(), part)


def _escaped_literal(literal: str) -> str:
    if literal[0] == "`" and ('"""' in literal or _unprintable(literal)):
        return go_string(literal[1:-1].replace("\r", ""))
    if literal[0] in "\"'" and _unprintable(literal):
        return literal[0] + "".join(_escape(char) for char in literal[1:-1]) + literal[0]
    return literal


def go_string(text: str) -> str:
    """A text as one line of Go: an interpreted string literal, what is not printable escaped."""
    return '"' + "".join(json.dumps(char)[1:-1] if char in '"\\\n\r\t' else _escape(char) for char in text) + '"'


def _escape(char: str) -> str:
    code = ord(char)
    if char.isprintable():
        return char
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _unprintable(text: str) -> bool:
    return any(not char.isprintable() and char not in UNPRINTABLE_KEPT for char in text)
