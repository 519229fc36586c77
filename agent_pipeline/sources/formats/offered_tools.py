"""The tools that a model was offered in each of its calls, and the choice of the tools of a row.

A row has one list of tools, although an agent may have had other tools in each call.
"""

from collections import Counter
from collections.abc import Sequence

from agent_pipeline.sessions.session import dump_canonical_json
from agent_pipeline.sources.formats.clock import mask_clock
from agent_pipeline.sources.formats.fields import function_tools

ToolSet = frozenset[str]
"""The tools of a call as canonical JSON.

Their order, and dates and times in descriptions do not matter.
"""


def make_tool_set(tools: object) -> ToolSet:
    """Return the tools of a model call in canonical form. It is empty if the call states none."""
    schemas, _ = function_tools(tools)
    return frozenset(dump_canonical_json(_without_clock(schema)) for schema in schemas)


def _without_clock(schema: object) -> object:
    """Return a schema without the dates and times in its descriptions."""
    if isinstance(schema, list):
        return [_without_clock(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: mask_clock(inner)
        if name == "description" and isinstance(inner, str)
        else _without_clock(inner)
        for name, inner in schema.items()
    }


def choose_tool_set(tool_sets: Sequence[ToolSet]) -> ToolSet:
    """Return the tools of most calls.

    If several sets are as frequent, the largest of them counts, then the last.
    """
    counts = Counter(tool_sets)
    return max(reversed(tool_sets), key=lambda tool_set: (counts[tool_set], len(tool_set)))
