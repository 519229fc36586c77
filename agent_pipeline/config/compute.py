"""Settings for the place where heavy tasks run: this machine, Ray, Kubernetes, or Slurm."""

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode

from agent_pipeline.options import Section, did_you_mean
from agent_pipeline.training.chain import STEPS, name_adapter_asset

Place = Literal["local", "ray", "kubernetes", "slurm"]

STEP_NAMES = tuple(map(name_adapter_asset, STEPS))
"""Names of the steps of the asset `adapter`. Each step can have its own place."""

HEAVY = (
    "sft_coreset",
    "adapter",
    *STEP_NAMES,
    "evaluation",
    "gguf_export",
    "episodes",
    "champion",
    "method_comparison",
)
"""Names of the assets that run tasks in the worker process, and of the steps of `adapter`."""
ALL = "*"


def _table(value: Any) -> Any:
    """Return the setting `compute` as a table.

    If the setting is one place, it applies to all assets. An environment variable may hold the
    table as JSON.
    """
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return json.loads(value)
    return {ALL: value} if isinstance(value, str) else value


def _of_heavy(places: dict[str, Place]) -> dict[str, Place]:
    if other := next((name for name in places if name not in (ALL, *HEAVY)), ""):
        raise ValueError(
            f"{other!r} is not a task of a worker{did_you_mean(other, (ALL, *HEAVY))}".rstrip(".")
        )
    return places


Compute = Annotated[dict[str, Place], NoDecode, BeforeValidator(_table), AfterValidator(_of_heavy)]
"""The place of each asset's tasks. `*` means all assets that are not named. A single place for all
tasks may be written as a text.
"""


class RaySettings(Section):
    """The Ray cluster on which tasks run (`[ray]`)."""

    address: str = Field(
        default="",
        description=(
            "URL of Ray's job server, such as http://head:8265. If this setting is empty, the "
            "environment variable RAY_ADDRESS is used, or the cluster on this machine."
        ),
    )
    gpus: float = Field(default=1, ge=0, description="Number of GPUs per task.")
    runtime_env: dict[str, Any] = Field(
        default={},
        description="Ray's runtime environment for a task, with keys such as pip and env_vars.",
    )
    arguments: dict[str, Any] = Field(
        default={},
        description="Further arguments of Ray's submit_job, such as entrypoint_num_cpus.",
    )


class KubernetesSettings(Section):
    """The Kubernetes pods in which tasks run (`[kubernetes]`)."""

    image: str = Field(
        default="",
        description=(
            "Container image. agent-pipeline must be installed in the image, and python must be "
            "on its PATH."
        ),
    )
    namespace: str = Field(
        default="",
        description=(
            "Namespace of the pods. If this setting is empty, the namespace of the current "
            "context is used."
        ),
    )
    resources: dict[str, Any] = Field(
        default={}, description="Resource requests and limits of the container."
    )
    node_selector: dict[str, str] = Field(
        default={}, description="Labels that a node must have to run the pods."
    )
    secrets: list[str] = Field(
        default=[],
        description="Kubernetes secrets whose keys become environment variables of the worker.",
    )
    pod: dict[str, Any] = Field(
        default={},
        description=(
            "Further fields of the pod's spec, in the form of Kubernetes. The first container is "
            "the worker."
        ),
    )


class SlurmSettings(Section):
    """The Slurm jobs in which tasks run (`[slurm]`)."""

    partition: str = Field(
        default="",
        description=(
            "Slurm partition. If this setting is empty, the default partition of the cluster is "
            "used."
        ),
    )
    arguments: list[str] = Field(
        default=[],
        description="Further arguments of sbatch, such as --gres=gpu:1 and --time=04:00:00.",
    )
    setup: list[str] = Field(default=[], description="Shell commands that run before the worker.")
    python: str = Field(
        default="",
        description=(
            "Path of the Python interpreter on the nodes. If this setting is empty, the "
            "interpreter of this process is used, which must then be on a shared file system."
        ),
    )
