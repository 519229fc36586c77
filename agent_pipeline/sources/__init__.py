"""One small reader for each kind of session store, behind one interface, chosen by what a path
holds.

A reader turns what its store has into canonical sessions and no more: pairing, repair, schema
inference, redaction and judging are shared and lie outside this room. To add a reader here, write a
subclass of `TraceSource` and put it into `registry.SOURCES`. Users add one without touching this
package: an entry point of the group `agent_pipeline.sources`, or `sources =
["package.module:Class"]` in pipeline.toml.
"""

from agent_pipeline.sources.agents.omniagents import OmniagentsSource
from agent_pipeline.sources.agents.openai_agents import OpenAIAgentsSource
from agent_pipeline.sources.base import TraceSource
from agent_pipeline.sources.opening import (
    Location,
    find,
    open_source,
    open_sources,
    parse_location,
    readers,
)
from agent_pipeline.sources.registry import SOURCES, Reader

__all__ = [
    "SOURCES",
    "Location",
    "OmniagentsSource",
    "OpenAIAgentsSource",
    "Reader",
    "TraceSource",
    "find",
    "open_source",
    "open_sources",
    "parse_location",
    "readers",
]
