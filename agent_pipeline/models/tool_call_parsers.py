"""The notations of tool calls: how each family writes a call, read back.

A reader gives what a text says in its notation, and None where the text has none of its marks.
"""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from agent_pipeline.sessions.session import Tool


@dataclass(frozen=True)
class Call:
    """A tool call; `arguments` is an object, or the raw text where that is not one (it then equals nothing but itself)."""

    name: str
    arguments: Any


Calls = list[Call] | None
"""The calls that one marked place of a text holds; None where it is not a valid call."""

Schemas = Mapping[str, Mapping[str, Any]]
"""The tools of a row: name → JSON schema of the parameters."""


class Reading(NamedTuple):
    """What a text says in a notation: the calls of each marked place, and the words outside them."""

    places: list[Calls]
    words: str


def parameter_schemas(tools: Sequence[Tool] | None) -> dict[str, Mapping[str, Any]]:
    """The schema of each tool's parameters, by the tool's name."""
    functions = (tool.get("function", tool) for tool in tools or ())
    return {function.get("name", ""): function.get("parameters") or {} for function in functions}


def json_calls(text: str) -> Calls:
    """The calls of a JSON text: an object, or a list of objects."""
    try:
        return _calls_of(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _calls_of(value: Any) -> Calls:
    calls = []
    for item in value if isinstance(value, list) else [value]:
        item = item.get("function", item) if isinstance(item, dict) else item
        if not (isinstance(item, dict) and isinstance(item.get("name"), str)):
            return None
        arguments = item.get("arguments", item.get("parameters"))
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError):
                return None
        if not isinstance(arguments, dict | None):
            return None
        calls.append(Call(item["name"], arguments or {}))
    return calls or None


_CODE = re.compile(r"```.*?(?:```|$)|`[^`\n]+`", re.DOTALL)
_TAG = re.compile(r"<tool_call>\s*")
_TAG_END = re.compile(r"\s*(?:</tool_call>|(?=<tool_call>)|$)")
_TAGGED = re.compile(r"(.*?)\s*(?:</tool_call>|(?=<tool_call>)|$)", re.DOTALL)
_XML_CALL = re.compile(r"<function=([^\n>]+)>(.*?)(?:</function>|$)", re.DOTALL)
_XML_PARAMETER = re.compile(r"<parameter=([^\n>]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_GLM_CALL = re.compile(r"([\w.-]+)\s*((?:<arg_key>.*?</arg_value>\s*)*)", re.DOTALL)
_GLM_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


def read_tagged(text: str, schemas: Schemas) -> Reading | None:
    """`<tool_call>` around JSON (Hermes, Qwen), around XML (Qwen3-Coder, Qwen 3.5), or around keys and values (GLM 4.5).

    A tag within a code block or a sentence is quoted, and calls nothing.
    """
    quoted = [match.span() for match in _CODE.finditer(text)]
    places: list[Calls] = []
    first, at = len(text), 0
    while tag := _TAG.search(text, at):
        at = tag.end()
        if any(start < tag.start() < end for start, end in quoted):
            continue
        calls, at = _tagged_calls(text, tag.end(), schemas)
        begins_line = not text[: tag.start()].rpartition("\n")[2].strip()
        if calls or begins_line or text[tag.end() : tag.end() + 1] in ("{", "[", "<", ""):
            places.append(calls)
            first = min(first, tag.start())
    return Reading(places, text[:first]) if places else None


def _tagged_calls(text: str, start: int, schemas: Schemas) -> tuple[Calls, int]:
    """The calls of the tag whose body starts there, and where it ends. A JSON string may hold the closing tag."""
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
        if closed := _TAG_END.match(text, end):
            return _calls_of(value), closed.end()
    except (ValueError, RecursionError):
        pass
    body = _TAGGED.match(text, start)
    assert body is not None  # it matches the empty text
    calls = [
        Call(
            name,
            {key: _typed(raw, schemas, name, key) for key, raw in _XML_PARAMETER.findall(inner)},
        )
        for name, inner in _XML_CALL.findall(body[1])
    ]
    if not calls and (glm := _GLM_CALL.fullmatch(body[1])) and (glm[2] or glm[1] in schemas):
        arguments = {
            key.strip(): _typed(raw.strip(), schemas, glm[1], key.strip())
            for key, raw in _GLM_ARGUMENT.findall(glm[2])
        }
        calls = [Call(glm[1], arguments)]
    return calls or None, body.end()


def _typed(raw: str, schemas: Schemas, tool: str, parameter: str) -> Any:
    """A value that a notation writes without quotes: text where the schema says so, else JSON where it is that."""
    schema = (schemas.get(tool, {}).get("properties") or {}).get(parameter) or {}
    if schema.get("type") == "string" or (
        "type" not in schema and all(isinstance(each, str) for each in schema.get("enum") or (0,))
    ):
        return raw
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return {"True": True, "False": False, "None": None}.get(raw, raw)


_NAMED = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(\{.*)", re.DOTALL)


def read_mistral(text: str, schemas: Schemas) -> Reading | None:
    """`[TOOL_CALLS][{"name": …, "arguments": {…}}]`, or `[TOOL_CALLS]name[ARGS]{…}` for each call."""
    words, *bodies = text.split("[TOOL_CALLS]")
    places: list[Calls] = []
    for body in filter(str.strip, bodies):
        named = _NAMED.fullmatch(body)
        places.append(
            json_calls(
                f'{{"name": {json.dumps(named[1])}, "arguments": {named[2]}}}' if named else body
            )
        )
    return Reading(places or [None], words) if bodies else None


def read_llama(text: str, schemas: Schemas) -> Reading | None:
    """`<|python_tag|>{"name": …, "parameters": {…}}`, calls parted by semicolons."""
    words, mark, body = text.partition("<|python_tag|>")
    return Reading([calls_in_sequence(body)], words) if mark else None


def calls_in_sequence(text: str) -> Calls:
    """JSON calls one after another, with semicolons or white space between them (Llama 3.x)."""
    calls, at = [], 0
    while at < len(text):
        try:
            value, at = json.JSONDecoder().raw_decode(text, at)
        except (ValueError, RecursionError):
            return None
        found = _calls_of(value)
        if found is None:
            return None
        calls += found
        at += len(text[at:]) - len(text[at:].lstrip("; \n\t"))
    return calls or None


_PHI = re.compile(
    r"<\|tool_call\|>(.*?)(?:<\|/tool_call\|>|$)|^\s*functools\s*(?=\[)(.*)", re.DOTALL
)


def read_phi(text: str, schemas: Schemas) -> Reading | None:
    """`<|tool_call|>[…]<|/tool_call|>` (Phi-4-mini, Granite), or `functools[…]`."""
    found = list(_PHI.finditer(text))
    return (
        Reading(
            [json_calls(match[1] or match[2] or "") for match in found], text[: found[0].start()]
        )
        if found
        else None
    )


_HARMONY_END = re.compile(r"<\|(?:end|call|return)\|>")


def read_harmony(text: str, schemas: Schemas) -> Reading | None:
    """gpt-oss: messages on channels. One `to=functions.name` calls, `analysis` is thought, the others are words."""
    if "<|message|>" not in text:
        return None
    places: list[Calls] = []
    words = []
    for message in text.split("<|start|>"):
        header, _, body = message.partition("<|message|>")
        body = _HARMONY_END.split(body)[0]
        if recipient := re.search(r"to=(?:functions\.)?([\w.-]+)", header):
            places.append(
                json_calls(f'{{"name": {json.dumps(recipient[1])}, "arguments": {body}}}')
            )
        elif "<|channel|>analysis" not in header:
            words.append(body)
    return Reading(places, "\n".join(words))


_DEEPSEEK = re.compile(
    r"<｜tool▁call▁begin｜>(.*?)(?:<｜tool▁call▁end｜>|(?=<｜tool▁call▁begin｜>)|$)", re.DOTALL
)
_DEEPSEEK_V3 = re.compile(r"\s*([^\n]+)\n```json\n(.*?)\n?```\s*", re.DOTALL)


def read_deepseek(text: str, schemas: Schemas) -> Reading | None:
    """V3 and R1: type, separator, name and a block of JSON. V3.1: name, separator, JSON."""
    words, mark, _ = text.partition("<｜tool▁calls▁begin｜>")
    if not mark and "<｜tool▁call▁begin｜>" not in text:
        return None
    places: list[Calls] = []
    for body in _DEEPSEEK.findall(text):
        left, _, right = body.partition("<｜tool▁sep｜>")
        block = _DEEPSEEK_V3.fullmatch(right)
        name, arguments = (block[1], block[2]) if block else (left, right)
        places.append(
            json_calls(f'{{"name": {json.dumps(name.strip())}, "arguments": {arguments}}}')
        )
    return Reading(places or [None], words.partition("<｜tool▁call▁begin｜>")[0])


_PYTHON_MARKS = re.compile(
    r"(?:<\|python_start\|>|<\|tool_call_start\|>|```tool_code\n)(.*?)(?:<\|python_end\|>|<\|tool_call_end\|>|```|$)",
    re.DOTALL,
)


def read_python(text: str, schemas: Schemas) -> Reading | None:
    """Calls of functions: between Llama 4's marks or LFM2's, or in Gemma 3's block `tool_code`."""
    found = list(_PYTHON_MARKS.finditer(text))
    return (
        Reading([python_calls(match[1], schemas) for match in found], text[: found[0].start()])
        if found
        else None
    )


def python_calls(text: str, schemas: Schemas) -> Calls:
    """Python source as calls: a list of them, or one a line, `print(…)` around it or not. Arguments are literals."""
    try:
        calls = [_python_call(node, schemas) for node in _expressions(ast.parse(text.strip()))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return calls or None


def _expressions(module: ast.Module) -> Iterator[ast.expr]:
    for statement in module.body:
        if not isinstance(statement, ast.Expr):
            raise ValueError("a statement is no call")
        yield from (
            statement.value.elts if isinstance(statement.value, ast.List) else (statement.value,)
        )


def _python_call(node: ast.expr, schemas: Schemas) -> Call:
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
        and len(node.args) == 1
    ):
        node = node.args[0]
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)):
        raise ValueError("not a call")
    name = ast.unparse(node.func)
    order = list(schemas.get(name, {}).get("properties") or {})
    arguments = dict(zip(order, map(_literal, node.args), strict=False))
    if len(arguments) < len(node.args) or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("an argument without a name")
    return Call(
        name, arguments | {str(keyword.arg): _literal(keyword.value) for keyword in node.keywords}
    )


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):  # JSON's words among Python's
        return (
            {"true": True, "false": False, "null": None}[node.id]
            if node.id in ("true", "false", "null")
            else ast.literal_eval(node)
        )
    return ast.literal_eval(node)


_GEMMA = re.compile(r"<\|tool_call>call:([\w.-]+)(\{.*?)(?:<tool_call\|>|$)", re.DOTALL)


def read_gemma(text: str, schemas: Schemas) -> Reading | None:
    """Gemma 4: `<|tool_call>call:name{key:<|"|>text<|"|>,other:2}<tool_call|>`; else as Python."""
    words, mark, _ = text.partition("<|tool_call>")
    if not mark:
        return read_python(text, schemas)
    found = _GEMMA.findall(text)
    return Reading(
        [
            json_calls(f'{{"name": {json.dumps(name)}, "arguments": {_gemma_json(body)}}}')
            for name, body in found
        ]
        or [None],
        words,
    )


def _gemma_json(body: str) -> str:
    """Keys and texts in JSON's quotes."""
    parts = body.split('<|"|>')
    keys = (re.sub(r"([{,]\s*)([\w.-]+)\s*:", r'\1"\2":', part) for part in parts[::2])
    texts = (json.dumps(part) for part in parts[1::2])
    return "".join(key + text for key, text in zip(keys, [*texts, ""], strict=False))


_BLOCK = re.compile(r"```(?:json|python)?\s*\n(.*?)\n?```", re.DOTALL)
_BEGUN = re.compile(
    r'\s*(?:\[?\s*\{\s*"(?:type"\s*:\s*"function"\s*,\s*"function"\s*:\s*\{\s*")?name"\s*:\s*"([\w.-]+)"|\[\s*([\w.]+)\()'
)


def read_bare(text: str, schemas: Schemas) -> Reading | None:
    """A text that is nothing but JSON calls or a Python-like list of them, in a code block or not.

    It has no marks, so each name must be a tool of the row; where the row lists none, each call must have arguments. A text that begins as
    such a call and cannot be read was meant as one.
    """
    block = _BLOCK.fullmatch(text)
    body = (block[1] if block else text).strip()
    if body[:1] not in ("{", "["):
        return None
    begun = _BEGUN.match(body)
    calls = calls_in_sequence(body) or (python_calls(body, schemas) if begun and begun[2] else None)
    if calls is None:
        return Reading([None], "") if begun and (begun[1] or begun[2]) in schemas else None
    known = (
        all(call.name in schemas for call in calls)
        if schemas
        else all(call.arguments for call in calls)
    )
    return Reading([calls], "") if known else None
