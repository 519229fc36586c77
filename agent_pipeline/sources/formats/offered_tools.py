"""The tools that a model was offered in each of its calls, and the choice of the tools of a row.

A row has one list of tools, although an agent may have had other tools in each call.
"""

from collections import Counter
from collections.abc import Sequence

from agent_pipeline.sessions.session import dump_canonical_json
from agent_pipeline.sources.formats.fields import function_tools

ToolSet = frozenset[str]
"""The tools of a call as canonical JSON. Their order does not matter."""


def make_tool_set(tools: object) -> ToolSet:
    """Return the tools of a model call in canonical form. It is empty if the call states none."""
    schemas, _ = function_tools(tools)
    return frozenset(map(dump_canonical_json, schemas))


def choose_tool_set(tool_sets: Sequence[ToolSet]) -> ToolSet:
    """Return the tools of most calls. If several are as frequent, the last of them counts."""
    counts = Counter(tool_sets)
    most = max(counts.values())
    return [tool_set for tool_set in tool_sets if counts[tool_set] == most][-1]
