"""Readers of session stores, one small reader per kind of store.

A reader turns the records of a store into canonical sessions, and does nothing else. All readers
share the code that pairs calls with results, repairs, infers schemas, redacts and judges. That code
is outside this package. To add a reader here, write a subclass of `TraceSource` and add it to
`registry.SOURCES`. Users can add a reader without changing this package: with an entry point of the
group `agent_pipeline.sources`, or with `sources = ["package.module:Class"]` in pipeline.toml.
"""

from agent_pipeline.sources.agents.omniagents import OmniagentsSource
from agent_pipeline.sources.agents.openai_agents import OpenAIAgentsSource
from agent_pipeline.sources.base import TraceSource
from agent_pipeline.sources.opening import (
    Location,
    find,
    list_stores,
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
    "list_stores",
    "open_source",
    "open_sources",
    "parse_location",
    "readers",
]
