"""Every kind of private value in every place of a session, with ten surroundings and in six encodings.

`python -m agent_pipeline_tests.redaction.matrix` writes the tables of docs/reference/private-data.md. The other lists
(`forms`, `secret_forms`, `personal_forms`) write a value in many ways, but in few places and surroundings.
"""

import base64
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import quote

from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline.redaction.kinds import PSEUDONYM
from agent_pipeline.sessions.session import Session
from agent_pipeline_tests.redaction.forms import DOC
from agent_pipeline_tests.redaction.planting import KINDS, Kind, stored

BEGIN, END = "<!-- matrix -->\n", "<!-- /matrix -->"
PLACES = (
    "system prompt", "user", "assistant", "tool arguments", "tool result", "tool description", "tool schema", "metadata",
    "thought",
)  # fmt: skip
SURROUNDINGS = (
    "{}", "{}, thanks", "({})", "[{}]", "\u201c{}\u201d", "'{}'", "**{}**", "<{}>", "\n{}\n", "\t{}\t",
)  # fmt: skip
"""What stands directly before and after a value."""

SHORTEST_RUN = 5


def _entities(text: str) -> str:
    return "".join(letter if letter.isalnum() else f"&#{ord(letter)};" for letter in text)


def _escapes(text: str) -> str:
    return "".join(letter if letter.isalnum() else f"\\u{ord(letter):04x}" for letter in text)


ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "JSON-escaped": lambda text: json.dumps(json.dumps(text))[1:-1],
    "URL-encoded": lambda text: quote(text, safe=""),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "HTML entities": _entities,
    "`\\u` escapes": _escapes,
}
"""How the text is written that holds the value, its label and what stands around it."""


class Cell(NamedTuple):
    """One way to log a value."""

    kind: Kind
    place: str
    surrounding: str
    encoding: str


def cells() -> Iterator[Cell]:
    """Yield every combination."""
    for kind in KINDS:
        for place in PLACES:
            for surrounding in SURROUNDINGS:
                for encoding in ENCODINGS:
                    yield Cell(kind, place, surrounding, encoding)


def is_found(cell: Cell, redactor: Redactor) -> bool:
    """Whether nothing of a value stays that gives it away: no run of its letters and digits, plain or as base64."""
    value = cell.kind.make(random.Random(f"{cell.kind.name} {cell.place} {cell.surrounding}"))
    secret = value.split("app:")[1].split("@")[0] if "://app:" in value else value
    said = cell.kind.said.format(cell.surrounding.format(value))
    session = session_with(cell.place, f"seen: {ENCODINGS[cell.encoding](said)} end")
    redactor.redact(session)
    text = stored(session)
    return bool(PSEUDONYM.search(text)) and not any(part in text for part in _parts(secret))


def _parts(secret: str) -> list[str]:
    parts = [
        part
        for part in re.findall(rf"[A-Za-z0-9]{{{SHORTEST_RUN},}}", secret)
        if part not in ("BEGIN", "OPENSSH", "PRIVATE", "example", "internal", "corp")
    ]
    encoded = []
    for shift in range(3):
        text = base64.b64encode(b"\0" * shift + secret.encode()).decode().rstrip("=")
        encoded.append(text[(0, 2, 3)[shift] : -1][:24])
    return [secret, *parts, *encoded]


def session_with(place: str, text: str) -> Session:
    """Return a session that has a text in a place."""
    texts = dict.fromkeys(PLACES, "nothing to see") | {place: text}
    function = {"name": "run", "arguments": json.dumps({"input": texts["tool arguments"]})}
    schema = {
        "type": "object",
        "properties": {"input": {"type": "string", "description": texts["tool schema"]}},
    }
    return Session(
        session_id="s",
        project="shop",
        agent="support",
        source="test",
        messages=[
            {"role": "system", "content": texts["system prompt"]},
            {"role": "user", "content": texts["user"]},
            {
                "role": "assistant",
                "content": texts["assistant"],
                "tool_calls": [{"id": "c1", "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": texts["tool result"]},
        ],
        tools=[
            {
                "type": "function",
                "function": {
                    "name": "run",
                    "description": texts["tool description"],
                    "parameters": schema,
                },
            }
        ],
        context={"note": texts["metadata"]},
        reasoning=[{"message": 2, "text": texts["thought"]}],
    )


def missed(redactor: Redactor) -> list[Cell]:
    """Return the combinations in which a value stays."""
    return [cell for cell in cells() if not is_found(cell, redactor)]


def table(misses: list[Cell]) -> str:
    """Return the Markdown tables: shares by encoding, and what is missed."""
    return "\n".join(_lines(misses)) + "\n"


def _lines(misses: list[Cell]) -> Iterator[str]:
    per_encoding = len(KINDS) * len(PLACES) * len(SURROUNDINGS)
    by_encoding = Counter(cell.encoding for cell in misses)
    yield "| encoding of the text | values | share that is found |"
    yield "|---|---:|---:|"
    for encoding in ENCODINGS:
        share = 1 - by_encoding[encoding] / per_encoding
        yield f"| {encoding} | {per_encoding:,} | {share:.1%} |"
    yield ""
    by_form = Counter((cell.kind.name, cell.surrounding, cell.encoding) for cell in misses)
    if not by_form:
        yield "Every value is found."
        return
    yield f"| value | text around the value | encoding | not found, of {len(PLACES)} places |"
    yield "|---|---|---|---:|"
    for (kind, surrounding, encoding), count in sorted(by_form.items()):
        shown = surrounding.format("\u2026").replace("\n", " ⏎ ").replace("\t", " ⇥ ")
        yield f"| {kind} | `{shown}` | {encoding} | {count} |"


def main() -> None:
    """Write the tables into the docs."""
    text = table(missed(Redactor(RedactionOptions())))
    before, _, rest = DOC.read_text(encoding="utf-8").partition(BEGIN)
    DOC.write_text(before + BEGIN + text + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
