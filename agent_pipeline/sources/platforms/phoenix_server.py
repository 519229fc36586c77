"""Reading from a running Phoenix server.

A listing returns the spans of every trace without their content, and all annotations.
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
"""Maximum number of ids per request, by kind. Proxies refuse URLs of more than 8,000 characters."""


class PhoenixServer(Service):
    """A server whose projects are the projects of Phoenix.

    Annotations of a trace or a session belong to its root spans.
    """

    variables = "PHOENIX_API_KEY"

    def login(self) -> Record:
        key = os.environ.get("PHOENIX_API_KEY")
        return {"headers": {"Authorization": f"Bearer {key}"}} if key else {}

    def projects(self) -> Iterator[tuple[str, str]]:
        for project in self.pages("/v1/projects", "data", {"limit": 100}):
            yield str(project.get("id")), str(project.get("name"))

    def look(self, project: str, name: str) -> Iterator[Head]:
        path = f"/v1/projects/{project}"
        parameters = {"include_spans": "true", "sort": "start_time", "order": "asc", "limit": 200}
        traces = list(self.pages(f"{path}/traces", "data", parameters))
        spans = {str(trace.get("trace_id")): objects(trace.get("spans")) for trace in traces}
        sessions = {
            str(trace.get("trace_id")): str(session.get("session_id"))
            for session in (
                self.pages(f"{path}/sessions", "data", {"limit": 200}) if traces else ()
            )
            for trace in objects(session.get("traces"))
        }
        of_span = self._annotations(
            path,
            "span",
            [str(entry.get("span_id")) for trace_spans in spans.values() for entry in trace_spans],
        )
        of_trace = self._annotations(path, "trace", spans)
        of_session = self._annotations(path, "session", dict.fromkeys(sessions.values()))
        for trace, trace_spans in spans.items():
            annotations_by_span = {}
            for span in trace_spans:
                annotations = of_span[str(span.get("span_id"))]
                if span.get("parent_id") is None:
                    annotations = [
                        *annotations,
                        *of_trace[trace],
                        *of_session[sessions.get(trace, "")],
                    ]
                annotations_by_span[str(span.get("span_id"))] = sorted(
                    annotations, key=lambda entry: str(entry.get("updated_at"))
                )
            ordered = sorted(trace_spans, key=lambda entry: str(entry.get("span_id")))
            text = json.dumps([ordered, annotations_by_span], sort_keys=True)
            yield Head(
                project,
                trace,
                digest(name.encode(), text.encode()),
                {"project": name, "annotations": annotations_by_span},
            )

    def outlines(self, heads: list[Head]) -> Iterator[Record]:
        for some in _some(heads, "trace"):
            known = {
                head.trace: self.memory.get(f"trace {head.trace}", head.digest) for head in some
            }
            if new := [head for head in some if known[head.trace] is None]:
                spans_by_trace = self._spans(new)
                known |= {
                    head.trace: [_outline(span) for span in spans_by_trace[head.trace]]
                    for head in new
                }
                self.memory.put(
                    (f"trace {head.trace}", head.digest, known[head.trace]) for head in new
                )
            yield from (
                {"data": [outline | _resource(head) for outline in known[head.trace]]}
                for head in some
            )

    def fetched(self, head: Head) -> Record:
        annotations = head.listed["annotations"]
        spans = self._spans([head])[head.trace]
        return {
            "data": [
                span | _resource(head) | {"annotations": annotations.get(_id(span), [])}
                for span in spans
            ]
        }

    def _spans(self, heads: list[Head]) -> dict[str, list[Record]]:
        """Return the spans of traces of one project, by trace, ordered by span id.

        Raises:
            StoreError: A span that was listed is missing.
        """
        spans_by_trace: dict[str, list[Record]] = defaultdict(list)
        path = f"/v1/projects/{heads[0].project}/spans"
        for span in self.pages(
            path, "data", {"trace_id": [head.trace for head in heads], "limit": 1000}
        ):
            spans_by_trace[str(section(span, "context").get("trace_id"))].append(span)
        for head in heads:
            if head.listed["annotations"].keys() - {
                _id(span) for span in spans_by_trace[head.trace]
            }:
                raise self.lost()
            spans_by_trace[head.trace].sort(key=_id)
        return spans_by_trace

    def _annotations(self, path: str, kind: str, ids: Iterable[str]) -> dict[str, list[Record]]:
        """Return the annotations of spans, traces or sessions, by id."""
        annotations_by_id: dict[str, list[Record]] = defaultdict(list)
        for some in _some(list(ids), kind):
            for annotation in self.pages(
                f"{path}/{kind}_annotations", "data", {f"{kind}_ids": some, "limit": 1000}
            ):
                annotations_by_id[str(annotation.get(f"{kind}_id"))].append(annotation)
        return annotations_by_id


def _outline(span: Record) -> Record:
    """Return the fields of a span that name its session and agent."""
    attributes = section(span, "attributes")
    kept = {name: None for name in ("llm.",) if has(attributes, OF_MODELS)} | chosen(
        attributes, (*SESSIONS, *AGENTS)
    )
    return {"name": "", "context": section(span, "context"), "start_time": None, "attributes": kept}


def _resource(head: Head) -> Record:
    return {"resource": {"attributes": {"openinference.project.name": head.listed["project"]}}}


def _id(span: Record) -> str:
    return str(section(span, "context").get("span_id"))


def _some(values: list[Any], kind: str) -> Iterator[list[Any]]:
    return (values[start : start + _IDS[kind]] for start in range(0, len(values), _IDS[kind]))
