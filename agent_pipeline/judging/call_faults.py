"""Validation of tool calls against the JSON schemas of the session's tools."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from agent_pipeline.sessions.session import Tool, encode_json
from agent_pipeline.sessions.transcript import PairedCall


def find_call_fault(call: PairedCall, tools: Sequence[Tool]) -> str:
    """Return a description of what is wrong with a call, or an empty text if the call is valid.

    A call is invalid if the tool does not exist, or if the tool's schema does not allow the
    arguments.

    Raises:
        jsonschema.SchemaError: The schema itself is broken.
        referencing.exceptions.Unresolvable: The schema refers to a schema elsewhere.
    """
    import jsonschema

    schemas = _read_schemas(encode_json(list(tools)))
    if call.name not in schemas:
        return "the session has no tool with this name"
    if call.arguments is None:
        return "its arguments are not a JSON object"
    schema = schemas[call.name]
    if schema is None:
        return ""
    validator = _make_validator(schema)
    if validator.is_valid(call.arguments):
        return ""
    error = jsonschema.exceptions.best_match(validator.iter_errors(call.arguments))
    where = ".".join(str(part) for part in error.absolute_path) or "the arguments"
    # The message of jsonschema quotes the value, which may be private.
    return f"{where} breaks the schema's {error.validator!r}"


@lru_cache(maxsize=256)  # sessions have equal tools in different objects
def _read_schemas(tools: bytes) -> dict[str, bytes | None]:
    """Return the JSON schema of each tool's arguments, by tool name.

    The value is `None` for a tool without a schema.
    """
    schemas: dict[str, bytes | None] = {}
    for tool in msgspec.json.decode(tools):
        function = tool.get("function")
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            parameters = function.get("parameters")
            schemas[function["name"]] = (
                encode_json(parameters) if isinstance(parameters, dict) else None
            )
    return schemas


@lru_cache(maxsize=1024)
def _make_validator(schema: bytes) -> Any:
    import jsonschema
    import referencing

    parsed = msgspec.json.decode(schema)
    validator_class = jsonschema.validators.validator_for(
        parsed, default=jsonschema.Draft202012Validator
    )
    validator_class.check_schema(parsed)
    # With an empty registry, a schema that refers to another schema by URL cannot trigger a
    # download.
    return validator_class(parsed, registry=referencing.Registry())
