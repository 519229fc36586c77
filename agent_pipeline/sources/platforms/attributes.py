"""Attributes of spans.

Functions convert OTLP's typed values into plain values, and dotted names into a tree and back.
Values that are nested more than 40 levels deep are cut off. The names of OTLP's fields may have the
form of JSON (`stringValue`) or of protobuf (`string_value`).
"""

from typing import Any

from agent_pipeline.sources.formats.fields import elements, section

_DEPTH = 40

SESSIONS = ("gen_ai.conversation.id", "session.id", "ai.telemetry.metadata.sessionId")
AGENTS = ("gen_ai.agent.name", "agent.name", "ai.telemetry.functionId")
OF_OPENINFERENCE = (
    "openinference.",
    "llm.input_messages",
    "llm.output_messages",
    "llm.model_name",
    "llm.token_count",
)
OF_GENAI = ("gen_ai.",)
OF_ADK = ("gcp.vertex.agent.",)
OF_MODELS = (
    *OF_OPENINFERENCE,
    *OF_GENAI,
    "ai.",
    "llm.",
    "session.id",
    "input.value",
    "output.value",
    "tool.",
    "evaluation.",
)


def has(attributes: dict[str, object], prefixes: tuple[str, ...]) -> bool:
    """Return whether an attribute exists whose name begins with one of the prefixes."""
    return any(name.startswith(prefixes) for name in attributes)


def plain_value(value: object, depth: int = _DEPTH) -> Any:
    """Convert the typed values of the OpenTelemetry protocol (OTLP) into plain values.

    OTLP writes a list of `{key, value: {stringValue: ...}}` objects, which becomes one object.
    """
    if depth < 0:
        return None
    if isinstance(value, list):
        pairs = [
            pair for pair in value if isinstance(pair, dict) and isinstance(pair.get("key"), str)
        ]
        return {pair["key"]: plain_value(pair.get("value"), depth - 1) for pair in pairs}
    if not isinstance(value, dict):
        return value
    for name, inner in value.items():
        if inner is None:  # some exporters write all type names and leave the others null
            continue
        kind = name.replace("_v", "V")
        if kind == "intValue":
            return _whole(inner)
        if kind == "arrayValue":
            return [
                plain_value(element, depth - 1)
                for element in elements(section(inner).get("values"))
            ]
        if kind == "kvlistValue":
            return plain_value(elements(section(inner).get("values")), depth - 1)
        if kind in ("stringValue", "boolValue", "doubleValue", "bytesValue"):
            return inner
    return None


def tree(attributes: dict[str, object]) -> dict[str, Any]:
    """Convert dotted names into nested objects (`a.0.b` → `{"a": [{"b": ...}]}`).

    Objects inside values are converted too. If names conflict, the first name counts.
    """
    root: dict[str, object] = {}
    for name, value in attributes.items():
        node = root
        *path, last = name.split(".", _DEPTH)
        for part in path:
            inner = node.setdefault(part, {})
            if isinstance(inner, list):
                inner = node[part] = {str(index): element for index, element in enumerate(inner)}
            if not isinstance(inner, dict):
                break
            node = inner
        else:
            node.setdefault(last, _treed(value))
    return {name: _listed(value) for name, value in root.items()}


def flat(attributes: dict[str, object]) -> dict[str, object]:
    """Convert nested objects into dotted names.

    Lists and all other values stay as they are.
    """
    names: dict[str, object] = {}
    waiting = [("", attributes)]
    while waiting:
        prefix, node = waiting.pop()
        for name, value in node.items():
            if isinstance(value, dict) and value and len(prefix) < 1000:
                waiting.append((f"{prefix}{name}.", value))
            else:
                names[f"{prefix}{name}"] = value
    return names


def _treed(value: object, depth: int = _DEPTH) -> object:
    if depth < 0:
        return None
    if isinstance(value, dict):
        return (
            tree(value)
            if any("." in str(name) for name in value)
            else {name: _treed(inner, depth - 1) for name, inner in value.items()}
        )
    return [_treed(inner, depth - 1) for inner in value] if isinstance(value, list) else value


def _listed(value: object, depth: int = _DEPTH) -> object:
    """Convert objects whose names are all numbers into lists.

    The list has the order of the numbers, with None for each gap between them: a limit on the
    number of attributes dropped what stood there.
    """
    if not isinstance(value, dict) or depth < 0:
        return value
    inner = {name: _listed(element, depth - 1) for name, element in value.items()}
    indexed = inner and all(
        name.isdecimal() and name.isascii() and len(name) < 10 for name in inner
    )
    if not indexed:
        return inner
    elements: list[object] = []
    next_number = 0
    for number, element in sorted((int(name), element) for name, element in inner.items()):
        elements += [element] if number == next_number else [None, element]
        next_number = number + 1
    return elements


def _whole(value: object) -> object:
    """Return a value as a whole number.

    JSON encodes 64-bit numbers as text.
    """
    try:
        return int(value) if isinstance(value, str) and len(value) < 25 else value
    except ValueError:
        return None
