"""Reading from a running Langfuse server (4.x).

A listing returns the observations of every trace without input and output, and all scores. Pages
begin with the latest item and continue after the last listed item (a cursor), so changes in the
meantime do not shift the pages.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterator

from agent_pipeline.sources.base import digest
from agent_pipeline.sources.formats.fields import Record, chosen, section
from agent_pipeline.sources.formats.services import Head, Service

_OBSERVATIONS = "/api/public/v2/observations"
_CUT = 200
"""Number of characters to which the API cuts a metadata value, unless the request names the value's
key.
"""


class LangfuseServer(Service):
    """The project that an API key of a Langfuse server belongs to.

    The scores of a session are a separate entry of the listing, as they are a separate record in a
    file.
    """

    variables = "LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY"

    def login(self) -> Record:
        key = os.environ.get("LANGFUSE_PUBLIC_KEY")
        return {"auth": (key, os.environ.get("LANGFUSE_SECRET_KEY", ""))} if key else {}

    def following(self, page: Record, cursor: str) -> object:
        return section(page, "meta").get(cursor)

    def projects(self) -> Iterator[tuple[str, str]]:
        for project in self.pages("/api/public/projects", "data", {}):
            yield str(project.get("id")), str(project.get("name"))

    def look(self, project: str, name: str) -> Iterator[Head]:
        scores: dict[str, list[Record]] = defaultdict(list)
        # Scores are read first, so that the observations listed later include everything that the
        # scores refer to.
        for score in self.pages(
            "/api/public/v3/scores", "data", {"fields": "subject", "limit": 100}
        ):
            subject = section(score, "subject")
            scores[
                f"session {subject.get('id')}"
                if subject.get("kind") == "session"
                else str(subject.get("traceId") or subject.get("id"))
            ].append(score)
        steps: dict[str, dict[str, tuple[str, str, str]]] = defaultdict(dict)
        about: dict[str, Record] = {}
        for observation in self.pages(
            _OBSERVATIONS, "data", {"fields": "core,basic,time,trace_context", "limit": 1000}
        ):
            trace, step = str(observation.get("traceId")), str(observation.get("id"))
            now = (
                str(observation.get("updatedAt")),
                str(observation.get("type")),
                digest(json.dumps(observation, sort_keys=True).encode()).hex(),
            )
            steps[trace][step] = max(
                steps[trace].get(step, now), now
            )  # an observation that was updated in the meantime may be listed twice
            about[trace] = chosen(
                observation, ("traceId", "projectId", "sessionId", "traceName")
            ) | about.get(trace, {})
        known = steps.keys() | {f"session {record.get('sessionId')}" for record in about.values()}
        for unmatched in scores.keys() - known:
            scores[""] += ({**score, "subject": {}} for score in scores.pop(unmatched))
        for group in sorted(steps.keys() | scores.keys()):
            group_steps, group_scores = (
                sorted(steps.get(group, {}).items()),
                sorted(scores.get(group, []), key=lambda record: str(record.get("id"))),
            )
            listed = {
                "steps": {
                    step: about[group] | {"type": kind} for step, (_, kind, _) in group_steps
                },
                "scores": group_scores,
            }
            yield Head(
                project,
                group,
                digest(json.dumps([group_steps, group_scores], sort_keys=True).encode()),
                listed,
            )

    def outlines(self, heads: list[Head]) -> Iterator[Record]:
        return (
            {"data": [*head.listed["steps"].values(), *head.listed["scores"]]} for head in heads
        )

    def fetched(self, head: Head) -> Record:
        steps = head.listed["steps"]
        observations = self._observations(head.trace) if steps else {}
        values = [
            item
            for observation in observations.values()
            for item in section(observation, "metadata").items()
        ]
        if cut := {name for name, value in values if isinstance(value, str) and len(value) == _CUT}:
            observations = self._observations(head.trace, {"expandMetadata": ",".join(sorted(cut))})
        if steps.keys() - observations.keys():
            raise self.lost()
        return {"data": [*(observations[step] for step in steps), *head.listed["scores"]]}

    def _observations(self, trace: str, more: Record | None = None) -> dict[str, Record]:
        """Return the observations of a trace, by id.

        If an observation is listed in two states, the later state counts.
        """
        parameters = {
            "traceId": trace,
            "fields": "core,basic,time,io,metadata,model,usage,trace_context",
            "limit": 100,
        } | (more or {})
        observations = sorted(
            self.pages(_OBSERVATIONS, "data", parameters),
            key=lambda observation: str(observation.get("updatedAt")),
        )
        return {str(observation.get("id")): observation for observation in observations}
