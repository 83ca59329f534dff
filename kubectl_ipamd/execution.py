"""Run `ipamctl` on a node by `kubectl exec`: in the daemon's pod or, while its container does not run, in a debug pod.

A command is root in both pods: in the daemon's pod it may change the node's network, and in a debug pod it may do anything on the
node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from kubectl_ipamd.cluster import CONTAINER, DaemonPod
from kubectl_ipamd.errors import NoAnswerError
from kubectl_ipamd.kubectl import Kubectl

DEBUG_LIFE_S = 900
"""The debug pod ends by itself after this time, if this program cannot delete it. Ours: a bundle, which takes longest, needs a minute;
15 minutes are enough for each command, and a forgotten pod is gone soon."""

START_S = 90.0
"""Longest wait for the start of the debug pod. Ours: mostly the image is on the node already, so that nothing must be pulled."""

CALL_S = 30.0
"""Longest wait for a short command of kubectl."""

HOST = "/host"
"""The directory at which `kubectl debug` mounts the node's file system in a debug pod. Source: `kubectl debug --help`."""

IPAMCTL_ENVIRONMENT = {
    "VPC_IPAMD_RUN_DIR": f"{HOST}/run/vpc-ipamd",
    "VPC_IPAMD_HISTORY_DIR": f"{HOST}/var/lib/vpc-ipamd/history",
}
"""Settings for a debug pod, by which `ipamctl` finds the daemon's files below HOST."""

_POD_NAME = re.compile(r"\bnode-debugger-[a-z0-9.-]+")


@contextmanager
def target(kubectl: Kubectl, pod: DaemonPod, *, may_debug: bool) -> Iterator[list[str]]:
    """Yield the words behind `kubectl exec` that choose a namespace, a pod and a container in which `ipamctl` can run.

    Args:
        may_debug: whether to make a debug pod while the daemon's container does not run.
    Raises: NoAnswerError if no such container runs.
    """
    if pod.is_running:
        yield ["-n", pod.namespace, pod.name, "-c", CONTAINER]
    elif may_debug:
        with debug_pod(kubectl, node=pod.node, namespace=pod.namespace, image=pod.image, environment=IPAMCTL_ENVIRONMENT) as name:
            yield ["-n", pod.namespace, name]
    else:
        raise NoAnswerError(
            f"the daemon's container on {pod.node} does not run ({pod.problem}): --debug starts a privileged pod there instead"
        )


@contextmanager
def debug_pod(
    kubectl: Kubectl, *, node: str, namespace: str, image: str, environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[str]:
    """Start a pod with the daemon's image on a node by `kubectl debug`, yield its name, and delete it. Raises: NoAnswerError."""
    words = debug_words(node=node, namespace=namespace, image=image, environment=environment)
    started = kubectl.run(words, timeout_s=CALL_S)
    names = _POD_NAME.findall(started.output.decode("utf-8", "replace") + started.error)
    if started.status or not names:
        raise NoAnswerError(f"`kubectl debug` started no pod on {node}: {started.error}")
    name = names[0].rstrip(".")
    try:
        words = ["wait", "-n", namespace, f"pod/{name}", "--for=condition=Ready", f"--timeout={START_S:.0f}s"]
        waited = kubectl.run(words, timeout_s=START_S + CALL_S)
        if waited.status:
            raise NoAnswerError(f"the debug pod {name} does not start: {waited.error}")
        yield name
    finally:
        kubectl.run(["delete", "pod", name, "-n", namespace, "--wait=false", "--ignore-not-found"], timeout_s=CALL_S)


def debug_words(*, node: str, namespace: str, image: str, environment: Mapping[str, str]) -> list[str]:
    """Return the words of a `kubectl debug` whose pod only sleeps.

    The actual command is then run by `kubectl exec`, because `kubectl debug` loses the output of a command that ends quickly.
    """
    variables = [f"--env={name}={value}" for name, value in environment.items()]
    return [
        "debug",
        f"node/{node}",
        "-n",
        namespace,
        f"--image={image}",
        "--image-pull-policy=IfNotPresent",
        "--profile=sysadmin",
        *variables,
        "--",
        "sleep",
        str(DEBUG_LIFE_S),
    ]
