"""The requests that a model was trained for: the system prompts and the tools of its rows.

A model knows the rule and the tools of its training. If the agent's requests change, the model
decides by the old rule, confidently. This module describes the requests of training rows, and
compares newer sessions with them. Finding the sessions and the model belongs to
`promotion.request_changes`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import msgspec

from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.json_types import JsonObject
from agent_pipeline.sessions.prompt_patterns import (
    PromptDifference,
    PromptPattern,
    count_alone,
    find_difference,
    forget_values,
    learn_patterns,
    split_words,
)
from agent_pipeline.sessions.session import (
    Message,
    Tool,
    dump_canonical_json,
    encode_tools,
    hash_json,
)
from agent_pipeline.structs import convert_value

REQUESTS_FILE = "requests.json"
"""The file of an adapter that holds `TrainedRequests`."""

FEWEST_CHANGED = 5
"""Minimum number of newer sessions with which a change is reported."""
SMALLEST_SHARE = 0.2
"""Minimum share of the newer sessions with which a change is reported."""
USUAL_SHARE = 0.9
"""Minimum share of the trained sessions that had a tool, if its absence is a change."""
MOST_TOOL_SETS = 20
"""Maximum number of different sets of tools that are kept."""

_TIMELESS = datetime(1970, 1, 1, tzinfo=UTC)


class ToolSet(msgspec.Struct, frozen=True):
    """The tools of some sessions, in the order in which the newest of them had the tools."""

    sessions: int
    tools: list[Tool]


class TrainedTool(msgspec.Struct, frozen=True):
    """A tool in the training rows.

    Attributes:
        sessions: The number of sessions with the tool.
        parameters: The hash of each JSON schema of its parameters, without descriptions.
        wordings: The hash of each whole schema, with descriptions.
    """

    sessions: int
    parameters: list[str]
    wordings: list[str]


class TrainedRequests(msgspec.Struct, frozen=True):
    """The requests of the rows on which an adapter was trained.

    Attributes:
        sessions: The number of rows.
        until: When the newest session began; `None` if no session has a time.
        prompts: The patterns of the system prompts, the most frequent pattern first.
        tool_sets: The sets of tools, the most frequent set first.
        tools: The tools by name.
    """

    sessions: int
    until: datetime | None
    prompts: list[PromptPattern]
    tool_sets: list[ToolSet]
    tools: dict[str, TrainedTool]

    @property
    def system_prompt(self) -> str:
        """Return the newest system prompt of the most frequent pattern."""
        return self.prompts[0].text if self.prompts else ""

    @property
    def usual_tools(self) -> list[Tool]:
        """Return the most frequent set of tools."""
        return self.tool_sets[0].tools if self.tool_sets else []

    @property
    def varying_values(self) -> list[str]:
        """Return the parts of `system_prompt` that differ from session to session."""
        if not self.prompts:
            return []
        pattern = self.prompts[0]
        values = pattern.find_values(split_words(pattern.text)) or []
        return [
            " ".join(value)
            for part, value in zip(pattern.parts, values, strict=True)
            if part.varies and value
        ]


class Request(NamedTuple):
    """The request of an agent's session to its model: the system prompt and the tools."""

    prompt: str
    tools: Sequence[Tool]


class RequestChange(msgspec.Struct, frozen=True):
    """A difference between newer sessions and the training rows.

    Attributes:
        kind: What changed. `wording` means that only descriptions of a tool changed.
        tool: The tool; empty for the system prompt.
        sessions: The number of newer sessions with the change.
        difference: Where the newest such system prompt differs.
    """

    kind: Literal["system prompt", "tool added", "tool removed", "parameters", "wording"]
    tool: str
    sessions: int
    difference: PromptDifference | None = None

    @property
    def is_minor(self) -> bool:
        """Return whether the model can be expected to do its job as before."""
        return self.kind == "wording"

    def __str__(self) -> str:
        texts = {
            "system prompt": "the system prompt changed",
            "tool added": f"the tool {self.tool} is new",
            "tool removed": f"the tool {self.tool} is missing",
            "parameters": f"the parameters of the tool {self.tool} changed",
            "wording": f"descriptions of the tool {self.tool} changed",
        }
        return f"{texts[self.kind]} ({self.sessions} sessions)"


def read_request(messages: Iterable[Message], tools: Sequence[Tool]) -> Request:
    """Return the request of a conversation. The prompt is all system messages at its start."""
    contents = []
    for message in messages:
        if message["role"] != "system":
            break
        contents.append(message["content"] or "")
    return Request("\n\n".join(contents), tools)


def describe_requests(rows: Iterable[DatasetRow]) -> TrainedRequests:
    """Return the requests of training rows, as the lake stores the rows."""
    ordered = sorted(
        rows, key=lambda row: (row.get("created_at") or _TIMELESS, row.get("session_id", ""))
    )
    times = [time for row in ordered if (time := row.get("created_at"))]
    requests = [read_request(row["messages"], row.get("tools") or []) for row in ordered]
    sets: dict[str, ToolSet] = {}
    tools: dict[str, TrainedTool] = {}
    for request in requests:
        name = _name_tools(request.tools)
        count = sets[name].sessions + 1 if name in sets else 1
        sets[name] = ToolSet(count, list(request.tools))
        for tool in request.tools:
            _count_tool(tools, tool)
    return TrainedRequests(
        sessions=len(ordered),
        until=times[-1] if times else None,
        prompts=learn_patterns([request.prompt for request in requests]),
        tool_sets=sorted(sets.values(), key=lambda tool_set: -tool_set.sessions)[:MOST_TOOL_SETS],
        tools=tools,
    )


def forget_rows(
    requests: TrainedRequests, forgotten: int, remaining: Sequence[Request]
) -> TrainedRequests | None:
    """Return the requests of training rows without what only forgotten rows may have said.

    The numbers of sessions and the time stay, because they describe the training.

    Args:
        requests: The requests of all rows.
        forgotten: The number of forgotten rows.
        remaining: The requests of the rows that are still known, the newest last.

    Returns:
        The requests, or `None` if no system prompt remains.
    """
    newest_first = dict.fromkeys(request.prompt for request in reversed(remaining))
    words_by_prompt = {prompt: split_words(prompt) for prompt in reversed(newest_first)}
    patterns = [forget_values(pattern, forgotten, words_by_prompt) for pattern in requests.prompts]
    prompts = [pattern for pattern in patterns if pattern]
    if not prompts:
        return None
    known_sets = {_name_tools(request.tools) for request in remaining}
    known_tools = {tool["function"]["name"] for request in remaining for tool in request.tools}
    return msgspec.structs.replace(
        requests,
        prompts=prompts,
        tool_sets=[
            tool_set
            for tool_set in requests.tool_sets
            if tool_set.sessions > forgotten or _name_tools(tool_set.tools) in known_sets
        ],
        tools={
            name: tool
            for name, tool in requests.tools.items()
            if tool.sessions > forgotten or name in known_tools
        },
    )


def _name_tools(tools: Sequence[Tool]) -> str:
    """Return a hash of a set of tools. Their order does not count."""
    return hash_json(sorted(map(dump_canonical_json, tools)))


def _count_tool(tools: dict[str, TrainedTool], tool: Tool) -> None:
    name = tool["function"]["name"]
    known = tools.get(name, TrainedTool(0, [], []))
    tools[name] = TrainedTool(
        known.sessions + 1,
        list(dict.fromkeys([*known.parameters, hash_parameters(tool)])),
        list(dict.fromkeys([*known.wordings, hash_json(tool)])),
    )


def hash_parameters(tool: Tool) -> str:
    """Return a hash of a tool's name and parameters, without any description.

    The order of the keys counts, because the prompt shows the schema in this order. A model that
    was trained on another order may call the wrong tool.
    """
    function = tool["function"]
    parameters = _drop_descriptions(function.get("parameters") or {})
    return hash_json([function["name"], encode_tools(parameters).decode()])


def _drop_descriptions(schema: object) -> object:
    """Return a JSON schema without descriptions and titles at any depth.

    A parameter may itself be called `description`.
    """
    if isinstance(schema, list):
        return [_drop_descriptions(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept: JsonObject = {}
    for name, value in schema.items():
        if name in ("properties", "$defs", "definitions") and isinstance(value, dict):
            kept[name] = {key: _drop_descriptions(inner) for key, inner in value.items()}
        elif name in ("enum", "const", "default", "examples"):
            kept[name] = value
        elif name == "required" and isinstance(value, list):
            kept[name] = sorted(map(str, value))
        elif name not in ("description", "title"):
            kept[name] = _drop_descriptions(value)
    return kept


def compare_requests(trained: TrainedRequests, newer: Sequence[Request]) -> list[RequestChange]:
    """Return the changes of the requests since training, the major changes first.

    A change is reported if at least `FEWEST_CHANGED` newer sessions and `SMALLEST_SHARE` of them
    have it. If many trained prompts resemble no other prompt, new prompts are expected. Then the
    share has to be larger. The order of the tools does not count.

    Args:
        trained: The requests of the training rows.
        newer: The requests of newer sessions, the newest last.
    """
    counts: Counter[tuple[str, str]] = Counter()
    difference = None
    for request in newer:
        for kind, tool in _find_tool_changes(trained, request.tools):
            counts[kind, tool] += 1
        if request_difference := find_difference(trained.prompts, request.prompt):
            counts["system prompt", ""] += 1
            difference = request_difference
    prompts_alone = count_alone([pattern.sessions for pattern in trained.prompts])
    expected = prompts_alone / trained.sessions if trained.sessions > 1 else 0.0
    changes = []
    for (kind, tool), sessions in sorted(counts.items()):
        is_prompt = kind == "system prompt"
        least = SMALLEST_SHARE + (expected if is_prompt else 0.0)
        if sessions >= FEWEST_CHANGED and sessions >= least * len(newer):
            values = {"kind": kind, "tool": tool, "sessions": sessions}
            change = convert_value(values, RequestChange)
            if is_prompt:
                change = msgspec.structs.replace(change, difference=difference)
            changes.append(change)
    return sorted(changes, key=lambda change: change.is_minor)


def _find_tool_changes(
    trained: TrainedRequests, tools: Sequence[Tool]
) -> Iterator[tuple[str, str]]:
    """Yield the kind of change and the name of each tool that is not as in training."""
    for tool in tools:
        name = tool["function"]["name"]
        known: TrainedTool | None = trained.tools.get(name)
        if known is None:
            yield "tool added", name
        elif hash_parameters(tool) not in known.parameters:
            yield "parameters", name
        elif hash_json(tool) not in known.wordings:
            yield "wording", name
    offered = {tool["function"]["name"] for tool in tools}
    for name, known in trained.tools.items():
        if name not in offered and known.sessions >= USUAL_SHARE * trained.sessions:
            yield "tool removed", name
