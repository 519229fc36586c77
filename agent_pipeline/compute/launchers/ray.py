"""Launcher that runs the worker as a job of a Ray cluster, by dagster-ray."""

from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from uuid import uuid4

import dagster as dg

from agent_pipeline.compute.launchers.launcher import WORKER, LakeMessages, Launcher
from agent_pipeline.config.compute import RaySettings
from agent_pipeline.errors import LESS_MEMORY


@dataclass(frozen=True)
class Ray(Launcher):
    """A launcher that submits the worker to a Ray cluster."""

    settings: RaySettings
    messages: LakeMessages
    where = "on Ray"
    advice = (
        "its log is in Ray's dashboard. If the task ran out of memory, request more with "
        f"`ray.arguments.entrypoint_memory`, or {LESS_MEMORY}."
    )

    def start(
        self, context: dg.AssetExecutionContext, extras: dict[str, object]
    ) -> dg.PipesClientCompletedInvocation:
        from dagster_ray.core.pipes import PipesRayJobClient

        client, job = (
            PipesRayJobClient(address=self.settings.address or None, message_reader=self.messages),
            job_of(self.settings),
        )
        try:
            result: dg.PipesClientCompletedInvocation = client.run(
                context=context, submit_job_params=job, extras=extras
            )
            return result
        except Exception:  # a connection that was lost, too: what nobody waits for must not go on
            with suppress(Exception):
                client.client.stop_job(job["submission_id"])
            raise


def job_of(settings: RaySettings) -> dict[str, object]:
    """Return the arguments of Ray's `submit_job` for a job with a unique name."""
    return {
        "entrypoint": " ".join(("python", *WORKER)),
        "submission_id": f"agent-pipeline-{uuid4().hex[:12]}",
        "entrypoint_num_gpus": settings.gpus,
        "runtime_env": deepcopy(settings.runtime_env),  # the client adds to it
        **settings.arguments,
    }
