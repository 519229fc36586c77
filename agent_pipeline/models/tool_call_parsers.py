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
"""The calls after one mark in a text, or None if they are invalid."""

ParameterSchemas: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The JSON schema of each tool's parameters, by tool name."""


@dataclass(frozen=True)
class FoundCalls:
    """The tool calls and the remaining text that were found with one notation.

    Attributes:
        calls_by_mark: The calls behind each mark of the notation.
        words: The words before the calls. Gemma 4 writes its words after the calls, too.
        start: The position of the first mark in the text.
    """

    calls_by_mark: list[CallsOfMark]
    words: str
    start: int = 0


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


@dataclass(frozen=True)
class _CallsAt:
    """The calls that begin at a position of a text, and the position at which they end.

    The end of calls that cannot be parsed is their beginning.
    """

    calls: CallsOfMark
    end: int


def _read_json_calls(text: str, start: int, closing: re.Pattern[str]) -> _CallsAt:
    """Read the calls in the JSON that begins at a position, and the mark that must follow it.

    A string in the JSON may contain any mark, so the JSON is read before its closing mark.

    Args:
        text: The text.
        start: The position after the opening mark.
        closing: The closing mark, with the white space around it.
    """
    value, end = _read_json(text, start)
    closing_mark = closing.match(text, end) if end > start else None
    if closing_mark is None:
        return _CallsAt(None, start)
    return _CallsAt(_calls_of_value(value), closing_mark.end())


def _read_named_call(name: str, text: str, start: int, closing: re.Pattern[str]) -> _CallsAt:
    """Read a call whose JSON contains only the arguments. As `_read_json_calls`."""
    arguments, end = _read_json(text, start)
    closing_mark = closing.match(text, end) if end > start else None
    if closing_mark is None or not isinstance(arguments, dict):
        return _CallsAt(None, start)
    return _CallsAt([ParsedCall(name, arguments)], closing_mark.end())


_BLANKS = re.compile(r"\s*")


def _read_json(text: str, start: int) -> tuple[JsonValue, int]:
    """Return the JSON value at a position and its end; the end is `start` if there is none."""
    blanks = _BLANKS.match(text, start)
    try:
        value: JsonValue
        value, end = json.JSONDecoder().raw_decode(text, blanks.end() if blanks else start)
    except (ValueError, RecursionError):
        return None, start
    return value, end


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
_XML_CALL = re.compile(r"\s*<function=([^\n>]+)>\s*")
_XML_PARAMETER = re.compile(
    r"<parameter=([^\n>]+)>\n?(.*?)\n?</parameter>\s*"
    r"(?=<parameter=|</function>|</tool_call>|<tool_call>|$)",
    re.DOTALL,
)
_XML_END = re.compile(r"(?:</function>|(?=</tool_call>))\s*")
_GLM_END = re.compile(r"\s*(?:</tool_call>|(?=<tool_call>))")
_GLM_NAME = re.compile(r"\s*([\w.-]+)\s*")
_GLM_ARGUMENT = re.compile(
    r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>\s*"
    r"(?=<arg_key>|</tool_call>|<tool_call>|$)",
    re.DOTALL,
)


def parse_tagged_calls(text: str, schemas: ParameterSchemas) -> FoundCalls | None:
    """Parse calls inside `<tool_call>`, written as JSON, as XML, or as keys and values.

    JSON is written by Hermes and Qwen, XML by Qwen3-Coder and Qwen 3.5, keys and values by GLM 4.5.
    A tag in a code block or in a sentence is a quotation and calls nothing.
    """
    calls_by_mark: list[CallsOfMark] = []
    first_call = len(text)
    position = 0
    last_call_end = 0
    while tag := _TAG.search(text, position):
        position = tag.end()
        if _is_quoted(text, last_call_end, tag.start()):
            continue
        tagged = _parse_tag(text, tag.end(), schemas)
        begins_line = not text[: tag.start()].rpartition("\n")[2].strip()
        next_character = text[tag.end() : tag.end() + 1]
        position = tagged.end
        if tagged.calls or begins_line or next_character in ("{", "[", "<", ""):
            calls_by_mark.append(tagged.calls)
            first_call = min(first_call, tag.start())
            last_call_end = position
    return FoundCalls(calls_by_mark, text[:first_call], first_call) if calls_by_mark else None


def _is_quoted(text: str, start: int, position: int) -> bool:
    """Return whether a position is inside of code that is quoted in the words after `start`."""
    return any(
        match.start() < position < match.end() for match in _QUOTED_CODE.finditer(text, start)
    )


def _parse_tag(text: str, start: int, schemas: ParameterSchemas) -> _CallsAt:
    """Parse the content of a tag from the position `start`."""
    tagged = _read_json_calls(text, start, _TAG_END)
    if tagged.calls is None:
        tagged = _read_xml_calls(text, start, schemas)
    if tagged.calls is None:
        tagged = _read_glm_call(text, start, schemas)
    if tagged.calls is None:
        body = _TAGGED_BODY.match(text, start)
        return _CallsAt(None, body.end() if body else start)
    return tagged


def _read_xml_calls(text: str, start: int, schemas: ParameterSchemas) -> _CallsAt:
    """Read XML up to the end of a tag. What is not a parameter makes the calls invalid."""
    calls = []
    position = start
    while head := _XML_CALL.match(text, position):
        name = head[1]
        position = head.end()
        arguments: JsonObject = {}
        while parameter := _XML_PARAMETER.match(text, position):
            key = parameter[1]
            if key in arguments:
                return _CallsAt(None, start)
            arguments[key] = _type_value(parameter[2], schemas, name, key)
            position = parameter.end()
        end = _XML_END.match(text, position)
        if end is None:
            return _CallsAt(None, start)
        position = end.end()
        calls.append(ParsedCall(name, arguments))
    closing_tag = _TAG_END.match(text, position)
    if not calls or closing_tag is None:
        return _CallsAt(None, start)
    return _CallsAt(calls, closing_tag.end())


def _read_glm_call(text: str, start: int, schemas: ParameterSchemas) -> _CallsAt:
    """Read a name with keys and values up to the end of a tag.

    The closing tag is required. Without it, more arguments may have been cut off.
    """
    name = _GLM_NAME.match(text, start)
    if name is None:
        return _CallsAt(None, start)
    position = name.end()
    arguments: JsonObject = {}
    while argument := _GLM_ARGUMENT.match(text, position):
        key = argument[1].strip()
        if key in arguments:
            return _CallsAt(None, start)
        arguments[key] = _type_value(argument[2], schemas, name[1], key)
        position = argument.end()
    closing_tag = _GLM_END.match(text, position)
    if closing_tag is None or not (arguments or name[1] in schemas):
        return _CallsAt(None, start)
    return _CallsAt([ParsedCall(name[1], arguments)], closing_tag.end())


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
    types = _types_of_schema(schema)
    if types and types <= {"string"}:
        return raw
    words: dict[str, JsonValue] = {"True": True, "False": False, "None": None}
    value: JsonValue
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        value = words.get(raw, raw)
    if "string" in types and _json_type(value) not in types:
        return raw
    return value


def _types_of_schema(schema: JsonValue) -> set[str]:
    """Return the types that a schema allows; an empty set if the schema does not say.

    Pydantic writes an optional text as `anyOf` of `string` and `null`. A list of texts to choose
    from is a text.
    """
    if not isinstance(schema, dict):
        return set()
    declared = schema.get("type")
    types = {declared} if isinstance(declared, str) else set()
    if isinstance(declared, list):
        types.update(name for name in declared if isinstance(name, str))
    for union in ("anyOf", "oneOf"):
        choices = schema.get(union)
        for choice in choices if isinstance(choices, list) else []:
            types |= _types_of_schema(choice)
    values = schema.get("enum")
    if not types and isinstance(values, list):
        types = {_json_type(value) for value in values}
    if schema.get("nullable") and types:
        types.add("null")
    return types | {"integer"} if "number" in types else types


def _json_type(value: JsonValue) -> str:
    """Return the name that JSON Schema gives to the type of a value."""
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return names.get(type(value), "object")


_MISTRAL_NAME = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(?=\{)")
_MISTRAL_END = re.compile(r"\s*(?:(?=\[TOOL_CALLS\])|$)")
_MISTRAL_MARK = "[TOOL_CALLS]"


def parse_mistral_calls(text: str, schemas: ParameterSchemas) -> FoundCalls | None:
    """Parse `[TOOL_CALLS][{"name": …, "arguments": {…}}]` or `[TOOL_CALLS]name[ARGS]{…}`."""
    start = text.find(_MISTRAL_MARK)
    if start < 0:
        return None
    calls_by_mark: list[CallsOfMark] = []
    position = start
    while position >= 0:
        position += len(_MISTRAL_MARK)
        if _MISTRAL_END.match(text, position):  # the mark is repeated, or the text ends
            position = text.find(_MISTRAL_MARK, position)
            continue
        name = _MISTRAL_NAME.match(text, position)
        if name:
            marked = _read_named_call(name[1], text, name.end(), _MISTRAL_END)
        else:
            marked = _read_json_calls(text, position, _MISTRAL_END)
        calls_by_mark.append(marked.calls)
        position = text.find(_MISTRAL_MARK, marked.end)
    return FoundCalls(calls_by_mark or [None], text[:start], start)


def parse_llama_calls(text: str, schemas: ParameterSchemas) -> FoundCalls | None:
    """Parse `<|python_tag|>{"name": …, "parameters": {…}}`, calls separated by semicolons."""
    words, mark, body = text.partition("<|python_tag|>")
    return FoundCalls([parse_call_sequence(body)], words, len(words)) if mark else None


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


_PHI_MARK = re.compile(r"<\|tool_call\|>|^\s*functools\s*(?=\[)")
_PHI_END = re.compile(r"\s*(?:<\|/tool_call\|>|(?=<\|tool_call\|>)|$)\s*")


def parse_phi_calls(text: str, schemas: ParameterSchemas) -> FoundCalls | None:
    """Parse `<|tool_call|>[…]<|/tool_call|>` (Phi-4-mini, Granite 3), or `functools[…]`."""
    first = mark = _PHI_MARK.search(text)
    calls_by_mark: list[CallsOfMark] = []
    while mark:
        marked = _read_json_calls(text, mark.end(), _PHI_END)
        calls_by_mark.append(marked.calls)
        mark = _PHI_MARK.search(text, marked.end)
    return FoundCalls(calls_by_mark, text[: first.start()], first.start()) if first else None


_HARMONY_MARK = re.compile(r"<\|(?:start|channel|message)\|>")
_HARMONY_HEADER = re.compile(r"((?:(?!<\|message\|>).)*)<\|message\|>", re.DOTALL)
_HARMONY_BODY = re.compile(r"(.*?)(?:<\|(?:end|call|return)\|>|(?=<\|start\|>)|$)", re.DOTALL)
_HARMONY_CALL_END = re.compile(r"\s*(?:<\|(?:end|call|return)\|>|(?=<\|start\|>)|$)")
_HARMONY_RECIPIENT = re.compile(r"to=(?:functions\.)?([\w.-]+)")


def parse_harmony_calls(text: str, schemas: ParameterSchemas) -> FoundCalls | None:
    """Parse the messages of gpt-oss. Each message belongs to a channel.

    A message to `functions.name` is a call, the channel `analysis` is a thought, and all other
    messages are words.
    """
    first_mark = _HARMONY_MARK.search(text)
    if first_mark is None or "<|message|>" not in text:
        return None
    calls_by_mark: list[CallsOfMark] = []
    words = []
    position = 0
    while header := _HARMONY_HEADER.match(text, position):
        recipient = _HARMONY_RECIPIENT.search(header[1])
        call = _CallsAt(None, header.end())
        if recipient:
            call = _read_named_call(recipient[1], text, header.end(), _HARMONY_CALL_END)
            calls_by_mark.append(call.calls)
        position = call.end
        if call.calls is None:
            body = _HARMONY_BODY.match(text, position)
            position = body.end() if body else len(text)
            if body and not recipient and "<|channel|>analysis" not in header[1]:
                words.append(body[1])
    return FoundCalls(calls_by_mark, "\n".join(words), first_mark.start())


_DEEPSEEK_CALL = re.compile(
    r"<｜tool▁call▁begin｜>((?:(?!<｜tool▁).)*)<｜tool▁sep｜>(?:\s*([^\n{]+)\n```json\n)?",
    re.DOTALL,
)
_DEEPSEEK_END = re.compile(
    r"\s*(?:```\s*)?(?:<｜tool▁call▁end｜>|(?=<｜tool▁call▁begin｜>)|(?=<｜tool▁calls▁end｜>)|$)"
)


def parse_deepseek_calls(text: str, schemas: ParameterSchemas) -> FoundCalls | None:
    """Parse calls in the notation of DeepSeek.

    V3 and R1 write a type, a separator, the name and a block of JSON. V3.1 writes the name, a
    separator and JSON.
    """
    mark = re.search("<｜tool▁calls?▁begin｜>", text)
    if mark is None:
        return None
    calls_by_mark: list[CallsOfMark] = []
    position = text.find("<｜tool▁call▁begin｜>", mark.start())
    while position >= 0:
        head = _DEEPSEEK_CALL.match(text, position)
        marked = _CallsAt(None, position + 1)
        if head:
            name = (head[2] or head[1]).strip()
            marked = _read_named_call(name, text, head.end(), _DEEPSEEK_END)
        calls_by_mark.append(marked.calls)
        position = text.find("<｜tool▁call▁begin｜>", marked.end)
    return FoundCalls(calls_by_mark or [None], text[: mark.start()], mark.start())


_PYTHON_MARK = re.compile(r"<\|python_start\|>|<\|tool_call_start\|>|```tool_code\n")
_PYTHON_END = re.compile(r"<\|python_end\|>|<\|tool_call_end\|>|```|$")
_PYTHON_PART = re.compile(
    r"""(?P<text>'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")"""
    r"""|(?P<before>[(,\[]\s*)(?P<key>[^\s=(),\[\]{}'":][^=(),\[\]{}'":]*?)\s*=(?!=)"""
    r"""|(?P<name>[^\s=(),\[\]{}'":]+)\(""",
    re.DOTALL,
)
_QUOTED_TEXT = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)


def parse_python_calls(text: str, schemas: ParameterSchemas) -> FoundCalls | None:
    """Parse calls that are written as calls of Python functions.

    They stand between the marks of Llama 4 or of LFM2, or in Gemma 3's block `tool_code`.
    """
    first = mark = _PYTHON_MARK.search(text)
    calls_by_mark: list[CallsOfMark] = []
    while mark:
        end = _find_outside_texts(_PYTHON_END, text, mark.end())
        calls_by_mark.append(parse_python_source(text[mark.end() : end.start()], schemas))
        mark = _PYTHON_MARK.search(text, end.end())
    return FoundCalls(calls_by_mark, text[: first.start()], first.start()) if first else None


def _find_outside_texts(pattern: re.Pattern[str], text: str, start: int) -> re.Match[str]:
    """Return the first match of a pattern that does not begin inside of a quoted text.

    Args:
        pattern: The pattern, which matches the end of the text.
        text: The Python source, and what follows it.
        start: The position at which the source begins.
    """
    position = start
    match = pattern.search(text, position)
    while match and (quoted := _QUOTED_TEXT.search(text, position)):
        if quoted.start() > match.start():
            break
        position = quoted.end()
        match = pattern.search(text, position)
    assert match is not None  # the pattern matches the end of the text
    return match


def parse_python_source(text: str, schemas: ParameterSchemas) -> CallsOfMark:
    """Return the calls in Python source that consists of a list of calls, or of one call per line.

    A call may be wrapped in `print(…)`. Arguments are literals, in Python or in JSON.
    """
    names: dict[str, str] = {}
    try:
        module = ast.parse(_PYTHON_PART.sub(lambda part: _as_identifier(part, names), text.strip()))
        calls = [_call_of_node(node, schemas, names) for node in _expressions(module)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return calls or None


def _as_identifier(part: re.Match[str], names: dict[str, str]) -> str:
    """Replace a name that Python does not accept, such as `order-id`, by an identifier.

    Args:
        part: A quoted text, the key of an argument, or the name of a function.
        names: Receives the replaced names, by their identifiers.
    """
    name = part["key"] or part["name"]
    if part["text"] or not name or all(word.isidentifier() for word in name.split(".")):
        return part[0]
    identifier = f"name_{len(names)}_"
    names[identifier] = name
    return f"{part['before']}{identifier}=" if part["key"] else f"{identifier}("


def _expressions(module: ast.Module) -> Iterator[ast.expr]:
    for statement in module.body:
        if not isinstance(statement, ast.Expr):
            raise ValueError("not a tool call: it is a Python statement")
        if isinstance(statement.value, ast.List):
            yield from statement.value.elts
        else:
            yield statement.value


def _call_of_node(
    node: ast.expr, schemas: ParameterSchemas, names: Mapping[str, str]
) -> ParsedCall:
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
    name = names.get(name, name)
    parameters = list(schemas.get(name, {}).get("properties") or {})
    if len(node.args) > len(parameters):
        raise ValueError("the tool has fewer parameters than the call has arguments")
    arguments: JsonObject = {}
    for parameter, argument in zip(parameters, node.args, strict=False):
        arguments[parameter] = _literal_value(argument)
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("an argument has no name")
        key = names.get(keyword.arg, keyword.arg)
        arguments[key] = _literal_value(keyword.value)
    return ParsedCall(name, arguments)


_JSON_WORDS: dict[str, Any] = {"true": True, "false": False, "null": None}
"""Words of JSON, such as `true`, that models also write in Python source."""


class _JsonWords(ast.NodeTransformer):
    """A change of JSON's words into Python's, at every depth of a value."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_JSON_WORDS[node.id]) if node.id in _JSON_WORDS else node


def _literal_value(node: ast.expr) -> JsonValue:
    value: JsonValue = ast.literal_eval(_JsonWords().visit(node))
    return value


@dataclass(frozen=True)
class _GemmaMarks:
    """The marks of a call in a notation of Gemma, and the mark around its texts."""

    opening: str
    closing: str
    quote: str


_GEMMA_4 = _GemmaMarks("<|tool_call>", "<tool_call|>", '<|"|>')
_FUNCTION_GEMMA = _GemmaMarks("<start_function_call>", "<end_function_call>", "<escape>")
_GEMMA_NAME = re.compile(r"\s*call:([^\s{]+)\s*(?=\{)")
_GEMMA_KEY = re.compile(r"\s*([^:{}\[\],]+?)\s*:")
_GEMMA_LITERAL = re.compile(r"[^,{}\[\]<]+")


def parse_gemma_calls(text: str, schemas: ParameterSchemas) -> FoundCalls | None:
    """Parse the calls of Gemma 4 and of FunctionGemma.

    Gemma 4 writes `<|tool_call>call:name{key:<|"|>text<|"|>,other:2}<tool_call|>`. FunctionGemma
    writes `<start_function_call>call:name{key:<escape>text<escape>}<end_function_call>`. A text
    without these marks is parsed as Python.
    """
    for marks in (_GEMMA_4, _FUNCTION_GEMMA):
        start = text.find(marks.opening)
        if start >= 0:
            return _parse_gemma_marks(text, start, marks)
    return parse_python_calls(text, schemas)


def _parse_gemma_marks(text: str, start: int, marks: _GemmaMarks) -> FoundCalls:
    words = [text[:start]]
    calls_by_mark: list[CallsOfMark] = []
    position = start
    while position >= 0:
        position += len(marks.opening)
        reader = _GemmaReader(text, position, marks)
        try:
            calls_by_mark.append([reader.read_call()])
            position = reader.position
        except (ValueError, RecursionError):
            calls_by_mark.append(None)
        opening = text.find(marks.opening, position)
        words.append(text[position : opening if opening >= 0 else None])
        position = opening
    is_valid = all(calls_by_mark)
    return FoundCalls(calls_by_mark, "".join(words) if is_valid else words[0], start)


class _GemmaReader:
    """A reader of one call in a notation of Gemma: JSON with bare keys and marked texts.

    Attributes:
        position: The position in the text up to which the call was read.
    """

    def __init__(self, text: str, position: int, marks: _GemmaMarks) -> None:
        self._text = text
        self._marks = marks
        self.position = position

    def read_call(self) -> ParsedCall:
        """Read a call and its closing mark, which may be missing at the end of the text.

        Raises:
            ValueError: The call is not in this notation.
        """
        name = _GEMMA_NAME.match(self._text, self.position)
        if name is None:
            raise ValueError("the call has no name")
        self.position = name.end()
        arguments = self._read_object()
        self._skip_blanks()
        if self.position < len(self._text) and not self._take(self._marks.closing):
            raise ValueError("the closing mark is missing")
        return ParsedCall(name[1], arguments)

    def _read_value(self) -> JsonValue:
        self._skip_blanks()
        if self._take(self._marks.quote):
            return self._read_to_quote()
        if self._text.startswith("{", self.position):
            return self._read_object()
        if self._take("["):
            return self._read_items()
        literal = _GEMMA_LITERAL.match(self._text, self.position)
        if literal is None:
            raise ValueError("a value is missing")
        self.position = literal.end()
        value: JsonValue = json.loads(literal[0])
        return value

    def _read_object(self) -> JsonObject:
        entries: JsonObject = {}
        self._require("{")
        while not self._take("}"):
            if entries:
                self._require(",")
            key = self._read_key()
            if key in entries:
                raise ValueError(f"{key} has two values")
            entries[key] = self._read_value()
            self._skip_blanks()
        return entries

    def _read_key(self) -> str:
        self._skip_blanks()
        if self._take(self._marks.quote):
            key = self._read_to_quote()
            self._require(":")
            return key
        bare_key = _GEMMA_KEY.match(self._text, self.position)
        if bare_key is None:
            raise ValueError("a key is missing")
        self.position = bare_key.end()
        return bare_key[1].strip('"')

    def _read_items(self) -> list[JsonValue]:
        items: list[JsonValue] = []
        self._skip_blanks()
        while not self._take("]"):
            if items:
                self._require(",")
            items.append(self._read_value())
            self._skip_blanks()
        return items

    def _read_to_quote(self) -> str:
        end = self._text.find(self._marks.quote, self.position)
        if end < 0:
            raise ValueError("a text has no end")
        text = self._text[self.position : end]
        self.position = end + len(self._marks.quote)
        return text

    def _skip_blanks(self) -> None:
        blanks = _BLANKS.match(self._text, self.position)
        self.position = blanks.end() if blanks else self.position

    def _take(self, mark: str) -> bool:
        is_there = self._text.startswith(mark, self.position)
        self.position += len(mark) * is_there
        return is_there

    def _require(self, mark: str) -> None:
        self._skip_blanks()
        if not self._take(mark):
            raise ValueError(f"{mark} is missing")


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
