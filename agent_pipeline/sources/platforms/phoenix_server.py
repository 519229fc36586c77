"""A running Phoenix server: a look lists the spans of every trace without their words, and all
annotations with theirs.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from agent_pipeline.sources.base import digest
from agent_pipeline.sources.formats.fields import Record, chosen, objects, section
from agent_pipeline.sources.formats.services import Head, Service
from agent_pipeline.sources.platforms.attributes import AGENTS, OF_MODELS, SESSIONS, has

_IDS = {"span": 200, "trace": 100, "session": 50}
"""How many ids a request may name: proxies refuse addresses that are longer than 8,000
characters.
"""


class PhoenixServer(Service):
    """The projects of a server; what is annotated on a trace or a session is said of its root
    spans.
    """

    variables = "PHOENIX_API_KEY"

    def login(self) -> Record:
        key = os.environ.get("PHOENIX_API_KEY")
        return {"headers": {"Authorization": f"Bearer {key}"}} if key else {}

    def projects(self) -> Iterator[tuple[str, str]]:
        for page in self.pages("/v1/projects", "data", {"limit": 100}):
            yield str(page.get("id")), str(page.get("name"))

    def look(self, project: str, name: str) -> Iterator[Head]:
        at = f"/v1/projects/{project}"
        asked = {"include_spans": "true", "sort": "start_time", "order": "asc", "limit": 200}
        traces = list(self.pages(f"{at}/traces", "data", asked))
        spans = {str(trace.get("trace_id")): objects(trace.get("spans")) for trace in traces}
        sessions = {
            str(trace.get("trace_id")): str(session.get("session_id"))
            for session in (self.pages(f"{at}/sessions", "data", {"limit": 200}) if traces else ())
            for trace in objects(session.get("traces"))
        }
        of_span = self._annotations(
            at, "span", [str(each.get("span_id")) for found in spans.values() for each in found]
        )
        of_trace = self._annotations(at, "trace", spans)
        of_session = self._annotations(at, "session", dict.fromkeys(sessions.values()))
        for trace, found in spans.items():
            said = {}
            for span in found:
                own = of_span[str(span.get("span_id"))]
                if span.get("parent_id") is None:
                    own = [*own, *of_trace[trace], *of_session[sessions.get(trace, "")]]
                said[str(span.get("span_id"))] = sorted(
                    own, key=lambda each: str(each.get("updated_at"))
                )
            ordered = sorted(found, key=lambda each: str(each.get("span_id")))
            text = json.dumps([ordered, said], sort_keys=True)
            yield Head(
                project,
                trace,
                digest(name.encode(), text.encode()),
                {"project": name, "annotations": said},
            )

    def outlines(self, heads: list[Head]) -> Iterator[Record]:
        for some in _some(heads, "trace"):
            known = {
                head.trace: self.memory.get(f"trace {head.trace}", head.digest) for head in some
            }
            if new := [head for head in some if known[head.trace] is None]:
                found = self._spans(new)
                known |= {
                    head.trace: [_outline(span) for span in found[head.trace]] for head in new
                }
                self.memory.put(
                    (f"trace {head.trace}", head.digest, known[head.trace]) for head in new
                )
            yield from (
                {"data": [each | _resource(head) for each in known[head.trace]]} for head in some
            )

    def fetched(self, head: Head) -> Record:
        said = head.listed["annotations"]
        spans = self._spans([head])[head.trace]
        return {
            "data": [
                span | _resource(head) | {"annotations": said.get(_id(span), [])} for span in spans
            ]
        }

    def _spans(self, heads: list[Head]) -> dict[str, list[Record]]:
        """Return the spans of traces that were listed with the same project, in the order of their
        ids.

        Raises:
            StoreError: there are fewer than the look listed.
        """
        found: dict[str, list[Record]] = defaultdict(list)
        at = f"/v1/projects/{heads[0].project}/spans"
        for span in self.pages(
            at, "data", {"trace_id": [head.trace for head in heads], "limit": 1000}
        ):
            found[str(section(span, "context").get("trace_id"))].append(span)
        for head in heads:
            if head.listed["annotations"].keys() - {_id(span) for span in found[head.trace]}:
                raise self.lost()
            found[head.trace].sort(key=_id)
        return found

    def _annotations(self, at: str, of: str, ids: Iterable[str]) -> dict[str, list[Record]]:
        """Return what is annotated on spans, traces or sessions, by their ids."""
        found: dict[str, list[Record]] = defaultdict(list)
        for some in _some(list(ids), of):
            for page in self.pages(
                f"{at}/{of}_annotations", "data", {f"{of}_ids": some, "limit": 1000}
            ):
                found[str(page.get(f"{of}_id"))].append(page)
        return found


def _outline(span: Record) -> Record:
    """Return what says which session and agent a span is of."""
    attributes = section(span, "attributes")
    kept = {name: None for name in ("llm.",) if has(attributes, OF_MODELS)} | chosen(
        attributes, (*SESSIONS, *AGENTS)
    )
    return {"name": "", "context": section(span, "context"), "start_time": None, "attributes": kept}


def _resource(head: Head) -> Record:
    return {"resource": {"attributes": {"openinference.project.name": head.listed["project"]}}}


def _id(span: Record) -> str:
    return str(section(span, "context").get("span_id"))


def _some(values: list[Any], of: str) -> Iterator[list[Any]]:
    return (values[start : start + _IDS[of]] for start in range(0, len(values), _IDS[of]))
