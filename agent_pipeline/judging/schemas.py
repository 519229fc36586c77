"""Calls against the JSON schemas of the session's tools."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from agent_pipeline.sessions.session import Tool, encode_json
from agent_pipeline.sessions.transcript import PairedCall


def call_fault(call: PairedCall, tools: Sequence[Tool]) -> str:
    """What is wrong with a call: no such tool, or arguments that its schema does not allow; empty if nothing is.

    Raises:
        jsonschema.SchemaError, referencing.exceptions.Unresolvable: the schema itself is broken, or lies elsewhere.
    """
    import jsonschema

    parameters = _parameters(encode_json(list(tools)))
    if call.name not in parameters:
        return "no tool of the session"
    if call.arguments is None:
        return "its arguments are not a JSON object"
    if (schema := parameters[call.name]) is None or (validator := _validator(schema)).is_valid(
        call.arguments
    ):
        return ""
    error = jsonschema.exceptions.best_match(validator.iter_errors(call.arguments))
    where = ".".join(str(part) for part in error.absolute_path) or "the arguments"
    # The message of jsonschema quotes the value, which may be private.
    return f"{where} breaks the schema's {error.validator!r}"


@lru_cache(maxsize=256)  # sessions share their tools, not the objects
def _parameters(tools: bytes) -> dict[str, bytes | None]:
    """The JSON schema of each tool's arguments by the tool's name; `None` where it has none."""
    functions = [tool.get("function") for tool in msgspec.json.decode(tools)]
    named = [
        each for each in functions if isinstance(each, dict) and isinstance(each.get("name"), str)
    ]
    schemas = [(each["name"], each.get("parameters")) for each in named]
    return {
        name: encode_json(schema) if isinstance(schema, dict) else None for name, schema in schemas
    }


@lru_cache(maxsize=1024)
def _validator(schema: bytes) -> Any:
    import jsonschema
    import referencing

    parsed = msgspec.json.decode(schema)
    kind = jsonschema.validators.validator_for(parsed, default=jsonschema.Draft202012Validator)
    kind.check_schema(parsed)
    # A registry of its own: a schema that names another by URL must not make us fetch it.
    return kind(parsed, registry=referencing.Registry())
