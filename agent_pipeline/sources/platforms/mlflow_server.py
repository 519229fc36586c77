"""Reading from a running MLflow server (3.x).

A listing is a search for traces. It returns everything but the spans, and includes assessments.
"""

import json
import os
from collections.abc import Iterator

from agent_pipeline.sources.base import digest
from agent_pipeline.sources.formats.fields import Record, objects, section
from agent_pipeline.sources.formats.services import Head, Service
from agent_pipeline.sources.platforms.attributes import plain_value


class MLflowServer(Service):
    """A server whose projects are the experiments of MLflow."""

    project = "experiment"
    variables = "MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"

    def login(self) -> Record:
        if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
            return {"headers": {"Authorization": f"Bearer {token}"}}
        user, word = (
            os.environ.get("MLFLOW_TRACKING_USERNAME"),
            os.environ.get("MLFLOW_TRACKING_PASSWORD", ""),
        )
        return {"auth": (user, word)} if user else {}

    def projects(self) -> Iterator[tuple[str, str]]:
        for experiment in self.pages(
            "/api/2.0/mlflow/experiments/search", "experiments", {"max_results": 1000}, "page_token"
        ):
            yield str(experiment.get("experiment_id")), str(experiment.get("name"))

    def look(self, project: str, name: str) -> Iterator[Head]:
        location = {"type": "MLFLOW_EXPERIMENT", "mlflow_experiment": {"experiment_id": project}}
        search: Record = {
            "locations": [location],
            "max_results": 500,
            "order_by": ["timestamp_ms ASC"],
        }
        for info in self.pages(
            "/api/3.0/mlflow/traces/search", "traces", search, "page_token", "POST"
        ):
            state_digest = digest(json.dumps(info, sort_keys=True).encode())
            kept = {name: info.get(name) for name in ("trace_id", "trace_location")}
            kept["trace_metadata"] = {
                "mlflow.trace.session": section(info, "trace_metadata").get("mlflow.trace.session")
            }
            kept["tags"] = {"mlflow.traceName": section(info, "tags").get("mlflow.traceName")}
            yield Head(project, str(info.get("trace_id")), state_digest, {"info": kept, "data": {}})

    def outlines(self, heads: list[Head]) -> Iterator[Record]:
        return (head.listed for head in heads)

    def fetched(self, head: Head) -> Record:
        trace = section(
            self.asked(
                "/api/3.0/mlflow/traces/get", {"trace_id": head.trace, "allow_partial": "true"}
            ),
            "trace",
        )
        if not (info := section(trace, "trace_info")):
            raise self.lost()
        assessments = sorted(
            objects(info.get("assessments")), key=lambda entry: str(entry.get("last_update_time"))
        )
        return {
            "info": info | {"assessments": assessments},
            "data": {"spans": [_as_saved(entry) for entry in objects(trace.get("spans"))]},
        }


def _as_saved(span: Record) -> Record:
    """Convert a span into the format in which MLflow saves spans.

    Its attributes are JSON texts.
    """
    return span | {
        "attributes": {
            name: json.dumps(value)
            for name, value in plain_value(span.get("attributes") or []).items()
        }
    }
