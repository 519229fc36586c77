"""One small reader for each kind of session store, behind one interface, found by what a path holds.

A reader turns what its store has into canonical sessions and no more: pairing, repair, schema inference, judging and redaction
are shared, outside this room. To add one: write a class with the members of `TraceSource` and put it into `SOURCES`.
"""

from pathlib import Path

from agent_pipeline.errors import StoreError
from agent_pipeline.traces.sources.base import TraceSource
from agent_pipeline.traces.sources.omniagents import OmniagentsSource
from agent_pipeline.traces.sources.openai_agents import OpenAIAgentsSource

SOURCES: tuple[type[TraceSource], ...] = (OmniagentsSource, OpenAIAgentsSource)


def open_source(path: Path) -> TraceSource:
    """The reader for what lies at `path`.

    Raises:
        StoreError: there is nothing there, or no reader knows it.
    """
    if not path.exists():
        raise StoreError(f"The session store {path} does not exist: set AGENT_PIPELINE_STORE (or store in pipeline.toml) to one that does.")
    for source in SOURCES:
        if source.detect(path):
            return source(path)
    known = "; ".join(f"{source.name}: {source.looks_like}" for source in SOURCES)
    raise StoreError(f"{path} holds no session store that a reader knows ({known}): check AGENT_PIPELINE_STORE.")


__all__ = ["SOURCES", "OmniagentsSource", "OpenAIAgentsSource", "TraceSource", "open_source"]
