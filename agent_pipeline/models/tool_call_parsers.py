"""Parsers of tool calls: one parser per notation in which models write calls.

A parser takes a generated text and returns the calls in its notation, or None if the text has no
mark of that notation. Which families use a notation belongs in `families`.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from agent_pipeline.json_types import JsonObject, JsonValue
from agent_pipeline.sessions.session import Tool


@dataclass(frozen=True)
class ParsedCall:
    """A tool call that was parsed from a model's text.

    Attributes:
        name: The name of the tool.
        arguments: The object of arguments, or the raw text if the arguments are not an object. Raw
            text equals only itself.
    """

    name: str
    arguments: Any


CallsOfMark: TypeAlias = list[ParsedCall] | None
"""Function that returns the calls after one mark in a text, or None if the calls are invalid."""

ParameterSchemas: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The JSON schema of each tool's parameters, by tool name."""


@dataclass(frozen=True)
class FoundCalls:
    """The tool calls and the remaining text that were found with one notation.

    Attributes:
        calls_by_mark: The calls behind each mark of the notation.
        words: The words outside the calls.
    """

    calls_by_mark: list[CallsOfMark]
    words: str


CallParser: TypeAlias = Callable[[str, ParameterSchemas], FoundCalls | None]


def list_parameter_schemas(tools: Sequence[Tool] | None) -> dict[str, Mapping[str, object]]:
    """Return the schema of each tool's parameters, by tool name."""
    functions = (tool.get("function", tool) for tool in tools or ())
    return {function.get("name", ""): function.get("parameters") or {} for function in functions}


def find_no_calls(text: str, schemas: ParameterSchemas) -> FoundCalls | None:
    """Return None. This is the parser of a family that has no notation for tool calls."""
    return None


def parse_json_calls(text: str) -> CallsOfMark:
    """Return the calls in a JSON text that is an object or a list of objects."""
    try:
        return _calls_of_value(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _parse_named_call(name: str, arguments: str) -> CallsOfMark:
    """Return the call that has a given tool name and arguments as JSON text."""
    return parse_json_calls(f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}')


def _calls_of_value(value: JsonValue) -> CallsOfMark:
    calls = []
    for item in value if isinstance(value, list) else [value]:
        function: object = item.get("function", item) if isinstance(item, dict) else item
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return None
        arguments = function.get("arguments", function.get("parameters"))
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError):
                return None
        if not isinstance(arguments, dict | None):
            return None
        calls.append(ParsedCall(function["name"], arguments or {}))
    return calls or None


_QUOTED_CODE = re.compile(r"```.*?(?:```|$)|`[^`\n]+`", re.DOTALL)
_TAG = re.compile(r"<tool_call>\s*")
_TAG_END = re.compile(r"\s*(?:</tool_call>|(?=<tool_call>)|$)")
_TAGGED_BODY = re.compile(r"(.*?)\s*(?:</tool_call>|(?=<tool_call>)|$)", re.DOTALL)
_XML_CALL = re.compile(r"<function=([^\n>]+)>(.*?)(?:</function>|$)", re.DOTALL)
_XML_PARAMETER = re.compile(r"<parameter=([^\n>]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_GLM_CALL = re.compile(r"([\w.-]+)\s*((?:<arg_key>.*?</arg_value>\s*)*)", re.DOTALL)
_GLM_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


@dataclass(frozen=True)
class _TaggedCalls:
    """The calls inside one tag, and the position in the text at which the tag ends."""

    calls: CallsOfMark
    end: int


def parse_tagged_calls(text: str, schemas: ParameterSchemas) -> FoundCalls | None:
    """Parse calls inside `<tool_call>`, written as JSON, as XML, or as keys and values.

    JSON is written by Hermes and Qwen, XML by Qwen3-Coder and Qwen 3.5, keys and values by GLM 4.5.
    A tag in a code block or in a sentence is a quotation and calls nothing.
    """
    quoted_ranges = [match.span() for match in _QUOTED_CODE.finditer(text)]
    calls_by_mark: list[CallsOfMark] = []
    first_call = len(text)
    position = 0
    while tag := _TAG.search(text, position):
        position = tag.end()
        if any(start < tag.start() < end for start, end in quoted_ranges):
            continue
        tagged = _parse_tag(text, tag.end(), schemas)
        position = tagged.end
        begins_line = not text[: tag.start()].rpartition("\n")[2].strip()
        next_character = text[tag.end() : tag.end() + 1]
        if tagged.calls or begins_line or next_character in ("{", "[", "<", ""):
            calls_by_mark.append(tagged.calls)
            first_call = min(first_call, tag.start())
    return FoundCalls(calls_by_mark, text[:first_call]) if calls_by_mark else None


def _parse_tag(text: str, start: int, schemas: ParameterSchemas) -> _TaggedCalls:
    """Parse the content of a tag from the position `start`.

    A JSON string may contain the closing tag.
    """
    try:
        value, value_end = json.JSONDecoder().raw_decode(text, start)
        closing_tag = _TAG_END.match(text, value_end)
        if closing_tag:
            return _TaggedCalls(_calls_of_value(value), closing_tag.end())
    except (ValueError, RecursionError):
        pass
    match = _TAGGED_BODY.match(text, start)
    assert match is not None  # the pattern matches the empty text
    body = match[1]
    calls = []
    for name, xml_arguments in _XML_CALL.findall(body):
        arguments = {
            key: _type_value(raw, schemas, name, key)
            for key, raw in _XML_PARAMETER.findall(xml_arguments)
        }
        calls.append(ParsedCall(name, arguments))
    glm_call = None if calls else _GLM_CALL.fullmatch(body)
    if glm_call and (glm_call[2] or glm_call[1] in schemas):
        arguments = {
            key.strip(): _type_value(raw.strip(), schemas, glm_call[1], key.strip())
            for key, raw in _GLM_ARGUMENT.findall(glm_call[2])
        }
        calls = [ParsedCall(glm_call[1], arguments)]
    return _TaggedCalls(calls or None, match.end())


def _type_value(raw: str, schemas: ParameterSchemas, tool: str, parameter: str) -> object:
    """Convert a value that a notation writes without quotes into the type that the schema states.

    The value is text if the schema requires text, else JSON if it can be parsed as JSON.

    Args:
        raw: The text of the value.
        schemas: The schemas of the row's tools.
        tool: The name of the tool.
        parameter: The name of the parameter.
    """
    schema = (schemas.get(tool, {}).get("properties") or {}).get(parameter) or {}
    if schema.get("type") == "string":
        return raw
    choices = schema.get("enum")
    if "type" not in schema and choices and all(isinstance(choice, str) for choice in choices):
        return raw
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return {"True": True, "False": False, "None": None}.get(raw, raw)


_MISTRAL_NAMED_CALL = re.compile(
    r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(\{.*)", re.DOTALL
)


def parse_mistral_calls(text: str, schemas: ParameterSchemas) -> FoundCalls | None:
    """Parse `[TOOL_CALLS][{"name": …, "arguments": {…}}]` or `[TOOL_CALLS]name[ARGS]{…}`."""
    words, *bodies = text.split("[TOOL_CALLS]")
    if not bodies:
        return None
    calls_by_mark: list[CallsOfMark] = []
    for body in bodies:
        if not body.strip():
            continue
        named_call = _MISTRAL_NAMED_CALL.fullmatch(body)
        if named_call:
            calls_by_mark.append(_parse_named_call(named_call[1], named_call[2]))
        else:
            calls_by_mark.append(parse_json_calls(body))
    return FoundCalls(calls_by_mark or [None], words)


def parse_llama_calls(text: str, schemas: ParameterSchemas) -> FoundCalls | None:
    """Parse `<|python_tag|>{"name": …, "parameters": {…}}`, calls separated by semicolons."""
    words, mark, body = text.partition("<|python_tag|>")
    return FoundCalls([parse_call_sequence(body)], words) if mark else None


def parse_call_sequence(text: str) -> CallsOfMark:
    """Parse several JSON calls in a row, separated by semicolons or white space."""
    calls: list[ParsedCall] = []
    position = 0
    while position < len(text):
        try:
            value, position = json.JSONDecoder().raw_decode(text, position)
        except (ValueError, RecursionError):
            return None
        calls_of_value = _calls_of_value(value)
        if calls_of_value is None:
            return None
        calls += calls_of_value
        rest = text[position:]
        position += len(rest) - len(rest.lstrip("; \n\t"))
    return calls or None


_PHI_CALLS = re.compile(
    r"<\|tool_call\|>(.*?)(?:<\|/tool_call\|>|$)|^\s*functools\s*(?=\[)(.*)", re.DOTALL
)


def parse_phi_calls(text: str, schemas: ParameterSchemas) -> FoundCalls | None:
    """Parse `<|tool_call|>[…]<|/tool_call|>` (Phi-4-mini, Granite), or `functools[…]`."""
    matches = list(_PHI_CALLS.finditer(text))
    if not matches:
        return None
    calls_by_mark = [parse_json_calls(match[1] or match[2] or "") for match in matches]
    return FoundCalls(calls_by_mark, text[: matches[0].start()])


_HARMONY_END = re.compile(r"<\|(?:end|call|return)\|>")
_HARMONY_RECIPIENT = re.compile(r"to=(?:functions\.)?([\w.-]+)")


def parse_harmony_calls(text: str, schemas: ParameterSchemas) -> FoundCalls | None:
    """Parse the messages of gpt-oss. Each message belongs to a channel.

    A message to `functions.name` is a call, the channel `analysis` is a thought, and all other
    messages are words.
    """
    if "<|message|>" not in text:
        return None
    calls_by_mark: list[CallsOfMark] = []
    words = []
    for message in text.split("<|start|>"):
        header, _, rest = message.partition("<|message|>")
        body = _HARMONY_END.split(rest)[0]
        recipient = _HARMONY_RECIPIENT.search(header)
        if recipient:
            calls_by_mark.append(_parse_named_call(recipient[1], body))
        elif "<|channel|>analysis" not in header:
            words.append(body)
    return FoundCalls(calls_by_mark, "\n".join(words))


_DEEPSEEK_CALL = re.compile(
    r"<｜tool▁call▁begin｜>(.*?)(?:<｜tool▁call▁end｜>|(?=<｜tool▁call▁begin｜>)|$)", re.DOTALL
)
_DEEPSEEK_BLOCK = re.compile(r"\s*([^\n]+)\n```json\n(.*?)\n?```\s*", re.DOTALL)


def parse_deepseek_calls(text: str, schemas: ParameterSchemas) -> FoundCalls | None:
    """Parse calls in the notation of DeepSeek.

    V3 and R1 write a type, a separator, the name and a block of JSON. V3.1 writes the name, a
    separator and JSON.
    """
    words, mark, _ = text.partition("<｜tool▁calls▁begin｜>")
    if not mark and "<｜tool▁call▁begin｜>" not in text:
        return None
    calls_by_mark: list[CallsOfMark] = []
    for body in _DEEPSEEK_CALL.findall(text):
        before, _, after = body.partition("<｜tool▁sep｜>")
        block = _DEEPSEEK_BLOCK.fullmatch(after)
        name, arguments = (block[1], block[2]) if block else (before, after)
        calls_by_mark.append(_parse_named_call(name.strip(), arguments))
    return FoundCalls(calls_by_mark or [None], words.partition("<｜tool▁call▁begin｜>")[0])


_PYTHON_CALLS = re.compile(
    r"(?:<\|python_start\|>|<\|tool_call_start\|>|```tool_code\n)(.*?)"
    r"(?:<\|python_end\|>|<\|tool_call_end\|>|```|$)",
    re.DOTALL,
)


def parse_python_calls(text: str, schemas: ParameterSchemas) -> FoundCalls | None:
    """Parse calls that are written as calls of Python functions.

    They stand between the marks of Llama 4 or of LFM2, or in Gemma 3's block `tool_code`.
    """
    matches = list(_PYTHON_CALLS.finditer(text))
    if not matches:
        return None
    calls_by_mark = [parse_python_source(match[1], schemas) for match in matches]
    return FoundCalls(calls_by_mark, text[: matches[0].start()])


def parse_python_source(text: str, schemas: ParameterSchemas) -> CallsOfMark:
    """Return the calls in Python source that consists of a list of calls, or of one call per line.

    A call may be wrapped in `print(…)`. Arguments are literals.
    """
    try:
        module = ast.parse(text.strip())
        calls = [_call_of_node(node, schemas) for node in _expressions(module)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return calls or None


def _expressions(module: ast.Module) -> Iterator[ast.expr]:
    for statement in module.body:
        if not isinstance(statement, ast.Expr):
            raise ValueError("not a tool call: it is a Python statement")
        if isinstance(statement.value, ast.List):
            yield from statement.value.elts
        else:
            yield statement.value


def _call_of_node(node: ast.expr, schemas: ParameterSchemas) -> ParsedCall:
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
        and len(node.args) == 1
    ):
        node = node.args[0]
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute)):
        raise ValueError("not a tool call: it is not a call of a function")
    name = ast.unparse(node.func)
    parameters = list(schemas.get(name, {}).get("properties") or {})
    if len(node.args) > len(parameters):
        raise ValueError("the tool has fewer parameters than the call has arguments")
    arguments: JsonObject = {}
    for parameter, argument in zip(parameters, node.args, strict=False):
        arguments[parameter] = _literal_value(argument)
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("an argument has no name")
        arguments[keyword.arg] = _literal_value(keyword.value)
    return ParsedCall(name, arguments)


_JSON_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None}
"""Words of JSON, such as `true`, that models also write in Python source."""


def _literal_value(node: ast.expr) -> object:
    if isinstance(node, ast.Name) and node.id in _JSON_WORDS:
        return _JSON_WORDS[node.id]
    return ast.literal_eval(node)


_GEMMA_CALL = re.compile(r"<\|tool_call>call:([\w.-]+)(\{.*?)(?:<tool_call\|>|$)", re.DOTALL)


def parse_gemma_calls(text: str, schemas: ParameterSchemas) -> FoundCalls | None:
    """Parse Gemma 4's `<|tool_call>call:name{key:<|"|>text<|"|>,other:2}<tool_call|>`.

    A text without this mark is parsed as Python.
    """
    words, mark, _ = text.partition("<|tool_call>")
    if not mark:
        return parse_python_calls(text, schemas)
    calls_by_mark = [
        _parse_named_call(name, _gemma_arguments_as_json(body))
        for name, body in _GEMMA_CALL.findall(text)
    ]
    return FoundCalls(calls_by_mark or [None], words)


def _gemma_arguments_as_json(body: str) -> str:
    """Convert the arguments of Gemma 4 into JSON, with quoted keys and texts."""
    parts = body.split('<|"|>')
    json_parts = []
    for index, part in enumerate(parts):
        is_text = index % 2 == 1
        if is_text:
            json_parts.append(json.dumps(part))
        else:
            json_parts.append(re.sub(r"([{,]\s*)([\w.-]+)\s*:", r'\1"\2":', part))
    return "".join(json_parts)


_CODE_BLOCK = re.compile(r"```(?:json|python)?\s*\n(.*?)\n?```", re.DOTALL)
_BARE_CALL_BEGINS = re.compile(
    r'\s*(?:\[?\s*\{\s*"(?:type"\s*:\s*"function"\s*,\s*"function"\s*:\s*\{\s*")?name"\s*:\s*'
    r'"([\w.-]+)"|\[\s*([\w.]+)\()'
)


def parse_bare_calls(text: str, schemas: ParameterSchemas) -> FoundCalls | None:
    """Parse a text that contains only JSON calls or a Python list of calls.

    Such a text has no marks, so each name must be a tool of the row; if the row lists no tools,
    each call must have arguments. A text that begins like such a call and cannot be parsed was
    meant as a call.
    """
    block = _CODE_BLOCK.fullmatch(text)
    body = (block[1] if block else text).strip()
    if body[:1] not in ("{", "["):
        return None
    beginning = _BARE_CALL_BEGINS.match(body)
    calls = parse_call_sequence(body)
    if calls is None and beginning and beginning[2]:
        calls = parse_python_source(body, schemas)
    if calls is None:
        named_tool = (beginning[1] or beginning[2]) if beginning else None
        return FoundCalls([None], "") if named_tool in schemas else None
    if schemas:
        is_meant = all(call.name in schemas for call in calls)
    else:
        is_meant = all(call.arguments for call in calls)
    return FoundCalls([calls], "") if is_meant else None
