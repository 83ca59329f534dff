"""Adapters of the port `PodFactsSource`: annotations that the runtime hands over with a sandbox, and kubelet's pods service.

The annotations that the runtime hands over do not change after the sandbox was begun. So an ADD that needs newer annotations is
refused, and the pod's next sandbox has them. kubelet answers with the present annotations, so an ADD can wait for a change. kubelet is
polled and not watched: its WatchPods reports a changed annotation only with the next change of the pod's status, and the status does
not change while an ADD is running (docs/assumptions.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import grpc
from google.protobuf.message import DecodeError

from ipamd.grpc_client import Peer, status
from ipamd.model.cni_request import AttachRequest
from ipamd.model.pod_annotations import POD_ENI
from ipamd.model.pod_facts import GroupRequirement, PodFacts, read_annotations
from ipamd.model.words import printable
from ipamd.pb import pods_pb2, pods_pb2_grpc
from ipamd.ports.pod_facts import PodFactsSource

POLL_S = 0.5
"""Pause in seconds between two requests of one ADD that waits for the control plane, which takes seconds. Ours: 16 waiting ADDs make
32 requests a second, and kubelet allows 100 a second for all its callers together. Source: kubernetes
pkg/kubelet/apis/pods/constants.go."""

RETRY_S = 0.1
"""Pause in seconds before a request that kubelet could not answer yet is repeated. Ours: a starting kubelet has its pods after some
100 ms."""

TEMPORARY = (
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,
)
"""Status codes after which a request is repeated: kubelet does not have the pod yet, kubelet has just started and has not read all
sources of its pods yet, kubelet's rate limit is exceeded, or kubelet shuts down.
Source: kubernetes pkg/kubelet/apis/pods/server.go, pkg/kubelet/apis/grpc/ratelimit.go."""

ANSWER_MAX_BYTES = 4 * 1024 * 1024
"""Largest answer that is read from kubelet. Ours: etcd stores no pod of more than 1.5 MiB."""


class AnnotationFacts(PodFactsSource):
    """Reads the facts about a pod from the annotations that the runtime hands over. Safe from any thread.

    One of these annotations is the mark that the admission policy sets.
    """

    def __init__(self, *, is_policy_known: Callable[[], bool]) -> None:
        """`is_policy_known`: returns whether a marked pod was seen, or a setting declares that all pods are marked."""
        self._is_policy_known = is_policy_known

    def facts(self, request: AttachRequest, *, timeout_s: float) -> PodFacts:  # noqa: ARG002  # the request has the annotations
        """See `PodFactsSource.facts`."""
        return read_annotations(request.annotations, is_policy_known=self._is_policy_known())

    def wait(self, *, timeout_s: float) -> bool:  # noqa: ARG002  # a sandbox's annotations never change
        """See `PodFactsSource.wait`."""
        return False

    def close(self) -> None:
        """Do nothing: there is no connection to close."""


class KubeletFacts(PodFactsSource):
    """Asks kubelet's pods service on its Unix socket. Safe from any thread.

    The connection is opened by the first request, and again after kubelet restarted.
    """

    def __init__(self, *, socket: str) -> None:
        self._socket = socket
        self._peer = Peer(socket, pods_pb2_grpc.PodsStub, answer_max_bytes=ANSWER_MAX_BYTES)

    def facts(self, request: AttachRequest, *, timeout_s: float) -> PodFacts:
        """See `PodFactsSource.facts`.

        While kubelet is away, starts, or does not have the pod yet, the request is repeated until the timeout. If the runtime does not
        name the pod's UID, kubelet is not asked, and the facts are UNKNOWN.
        """
        names, until = request.names, time.monotonic() + timeout_s
        if not names.pod_uid:
            return PodFacts(
                GroupRequirement.UNKNOWN, "the runtime does not tell the pod's UID (K8S_POD_UID), by which kubelet knows it"
            )
        question, earlier = pods_pb2.GetPodRequest(podUID=names.pod_uid), None
        while True:
            try:
                reply = self._peer.ask("GetPod", question, timeout_s=max(until - time.monotonic(), 0.0), is_patient=True)
            except grpc.RpcError as error:
                failed = status(error)
                if failed[0] in TEMPORARY and until - time.monotonic() > RETRY_S:
                    earlier = failed
                    time.sleep(RETRY_S)
                    continue
                # For the operator, an earlier error that kubelet sent is a better reason than the timeout of the last request.
                if failed[0] is grpc.StatusCode.DEADLINE_EXCEEDED and earlier is not None:
                    failed = earlier
                code, message = failed
                return PodFacts(
                    GroupRequirement.UNKNOWN, self._why(code, message, names.pod_uid), is_of_pod=code is grpc.StatusCode.NOT_FOUND
                )
            return _read(reply, request)

    def wait(self, *, timeout_s: float) -> bool:
        """See `PodFactsSource.wait`."""
        time.sleep(min(POLL_S, timeout_s))
        return True

    def close(self) -> None:
        """Close the channel. Requests that are running fail."""
        self._peer.close()

    def _why(self, code: grpc.StatusCode, message: str, uid: str) -> str:
        """Return why there is no answer, and the next step if waiting does not help."""
        if code is grpc.StatusCode.UNIMPLEMENTED:
            advice = "it does from 1.37 on; else set VPC_IPAMD_POD_SECURITY_GROUP_SOURCE=annotations"
            return f"kubelet serves no pods at {self._socket} ({message}): {advice}"
        if code is grpc.StatusCode.NOT_FOUND:
            return f"kubelet does not have pod {printable(uid)}"
        if code is grpc.StatusCode.FAILED_PRECONDITION:
            return f"kubelet is starting ({message})"
        return f"kubelet does not answer at {self._socket} ({message})"


def _read(reply: pods_pb2.GetPodResponse | None, request: AttachRequest) -> PodFacts:
    """Read the facts from kubelet's answer. They are UNKNOWN if the answer was cut off, is not a pod, or is about another pod."""
    names = request.names
    if reply is None:  # grpcio returns None for a message that was cut off
        return PodFacts(GroupRequirement.UNKNOWN, "kubelet's answer was cut off")
    try:
        pod = pods_pb2.Pod.FromString(reply.pod)
    except DecodeError:
        return PodFacts(GroupRequirement.UNKNOWN, "kubelet's answer is no pod")
    metadata = pod.metadata
    if (metadata.uid, metadata.namespace, metadata.name) != (names.pod_uid, names.pod_namespace, names.pod_name):
        other = printable(f"{metadata.namespace}/{metadata.name}")
        return PodFacts(GroupRequirement.UNKNOWN, f"kubelet's answer is about another pod, {other}", is_of_pod=True)
    is_wanted = any(POD_ENI in container.resources.limits for container in pod.spec.containers)
    why = f"{'a' if is_wanted else 'no'} container of the pod limits {POD_ENI}"
    return PodFacts(GroupRequirement.YES if is_wanted else GroupRequirement.NO, why, metadata.annotations.get(POD_ENI, ""))
