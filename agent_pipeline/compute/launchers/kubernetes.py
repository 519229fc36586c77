"""Launcher that runs the worker as a pod of a Kubernetes cluster, by dagster-k8s."""

from dataclasses import dataclass

import dagster as dg

from agent_pipeline.compute.launchers.launcher import WORKER, LakeMessages, Launcher
from agent_pipeline.config.compute import KubernetesSettings
from agent_pipeline.errors import LESS_MEMORY


@dataclass(frozen=True)
class Kubernetes(Launcher):
    """A launcher that runs the worker as a pod, and deletes the pod afterwards."""

    settings: KubernetesSettings
    messages: LakeMessages
    where = "on Kubernetes"
    advice = (
        "if the pod was evicted or ran out of memory (OOMKilled), raise `kubernetes.resources`, "
        f"or {LESS_MEMORY}. Completed artifacts are reused."
    )

    def start(
        self, context: dg.AssetExecutionContext, extras: dict[str, object]
    ) -> dg.PipesClientCompletedInvocation:
        from dagster_k8s import PipesK8sClient

        spec, namespace = pod_spec(self.settings), self.settings.namespace or None
        client = PipesK8sClient(message_reader=self.messages, poll_interval=5.0)
        result: dg.PipesClientCompletedInvocation = client.run(
            context=context, namespace=namespace, base_pod_spec=spec, extras=extras
        )
        return result


def pod_spec(settings: KubernetesSettings) -> dict[str, object]:
    """Return the pod's specification in the format of Kubernetes."""
    first, *others = settings.pod.get("containers") or [{}]
    worker = {
        "name": "worker",
        "image": settings.image,
        "command": ["python", *WORKER],
        "resources": settings.resources,
        "envFrom": [{"secretRef": {"name": name}} for name in settings.secrets],
    }
    return {
        "nodeSelector": settings.node_selector,
        **settings.pod,
        "containers": [worker | first, *others],
    }
