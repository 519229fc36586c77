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
            "URL of Ray's job server, such as http://head:8265. Empty means the "
            "variable RAY_ADDRESS, or the cluster of this machine."
        ),
    )
    gpus: float = Field(default=1, ge=0, description="GPUs per task.")
    runtime_env: dict[str, Any] = Field(
        default={}, description="Ray's runtime environment of a task: pip, env_vars and others."
    )
    arguments: dict[str, Any] = Field(
        default={}, description="Other arguments of Ray's submit_job, such as entrypoint_num_cpus."
    )


class KubernetesSettings(Section):
    """The Kubernetes pods in which tasks run (`[kubernetes]`)."""

    image: str = Field(
        default="", description="Image that has agent-pipeline installed and python on its PATH."
    )
    namespace: str = Field(
        default="",
        description=("Namespace of the pods. Empty means the namespace of the current context."),
    )
    resources: dict[str, Any] = Field(
        default={}, description="Requests and limits of the container."
    )
    node_selector: dict[str, str] = Field(
        default={}, description="Labels of the nodes on which the pods may run."
    )
    secrets: list[str] = Field(
        default=[], description="Secrets whose keys become environment variables of the worker."
    )
    pod: dict[str, Any] = Field(
        default={},
        description=(
            "Other fields of the pod's spec, as Kubernetes writes them. The first "
            "container is the worker."
        ),
    )


class SlurmSettings(Section):
    """The Slurm jobs in which tasks run (`[slurm]`)."""

    partition: str = Field(
        default="", description="Slurm partition. Empty means the default of the cluster."
    )
    arguments: list[str] = Field(
        default=[],
        description="Other arguments of sbatch, such as --gres=gpu:1 and --time=04:00:00.",
    )
    setup: list[str] = Field(default=[], description="Shell commands that run before the worker.")
    python: str = Field(
        default="",
        description=(
            "Path of the Python interpreter on the nodes. Empty means the path of "
            "this interpreter, which must then be on a shared file system."
        ),
    )
