"""The port `PodFactsSource`: what the runtime hands over with a sandbox, and what kubelet's pods service says of its pod.

The annotations of a sandbox stay as they were when it was begun, so an ADD by them is refused until the runtime makes the pod's next
sandbox. kubelet's answer is of now: an ADD can wait by it. It is asked again and not watched, because WatchPods tells a changed
annotation only with the next change of the pod's status, which an ADD that is at work keeps from coming (docs/assumptions.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import grpc
from google.protobuf.message import DecodeError

from ipamd.grpc_client import open_channel, status
from ipamd.model.attachment import AttachRequest
from ipamd.model.branch import POD_ENI, PodFacts, Wish, read_annotations
from ipamd.model.words import printable
from ipamd.pb import pods_pb2, pods_pb2_grpc
from ipamd.ports import PodFactsSource

POLL_S = 0.5
"""Between two questions of one ADD that waits for the control plane, which takes seconds. Ours: 16 ADDs that wait ask kubelet 32 times
a second; it allows 100 of all its callers together. Source: kubernetes pkg/kubelet/apis/pods/constants.go."""

RETRY_S = 0.1
"""Before a question is repeated that kubelet could not answer yet. Ours: a kubelet that starts has its pods after some 100 ms."""

PASSING = (
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,
)
"""What a question ends with while kubelet does not have the pod, its sources have not answered yet, others ask too often, or it ends.
Source: kubernetes pkg/kubelet/apis/pods/server.go, pkg/kubelet/apis/grpc/ratelimit.go."""

ANSWER_MAX_BYTES = 4 * 1024 * 1024
"""Ours: etcd takes no pod of more than 1.5 MiB."""


class AnnotationFacts(PodFactsSource):
    """By the annotations that the runtime hands over, and the mark of the admission policy among them. From any thread."""

    def __init__(self, *, is_policy_known: Callable[[], bool]) -> None:
        """`is_policy_known`: a marked pod was seen, or a setting says that there are no others."""
        self._is_policy_known = is_policy_known

    def facts(self, request: AttachRequest, *, timeout_s: float) -> PodFacts:  # noqa: ARG002  # nobody is asked
        """See the port."""
        return read_annotations(request.annotations, is_policy_known=self._is_policy_known())

    def wait(self, *, timeout_s: float) -> bool:  # noqa: ARG002  # nothing can come
        """See the port."""
        return False

    def close(self) -> None:
        """Nothing is open."""


class KubeletFacts(PodFactsSource):
    """kubelet behind one channel, which connects at the first question and again after kubelet restarted. From any thread."""

    def __init__(self, *, socket: str) -> None:
        self._socket = socket
        self._channel = open_channel(socket, answer_max_bytes=ANSWER_MAX_BYTES)
        self._stub = pods_pb2_grpc.PodsStub(self._channel)  # type: ignore[no-untyped-call]  # generated code

    def facts(self, request: AttachRequest, *, timeout_s: float) -> PodFacts:
        """See the port. A kubelet that is away, starts, or does not have the pod yet, is asked again until then."""
        names, until = request.names, time.monotonic() + timeout_s
        if not names.pod_uid:
            return PodFacts(Wish.UNKNOWN, "the runtime does not tell the pod's UID (K8S_POD_UID), by which kubelet knows it")
        question, earlier = pods_pb2.GetPodRequest(podUID=names.pod_uid), None
        while True:
            try:
                reply = self._stub.GetPod(question, timeout=max(until - time.monotonic(), 0.0), wait_for_ready=True)
            except grpc.RpcError as error:
                failed = status(error)
                if failed[0] in PASSING and until - time.monotonic() > RETRY_S:
                    earlier = failed
                    time.sleep(RETRY_S)
                    continue
                # What kubelet said before its last question's time was up says more than that.
                code, said = failed if failed[0] is not grpc.StatusCode.DEADLINE_EXCEEDED else earlier or failed
                return PodFacts(Wish.UNKNOWN, self._why(code, said, names.pod_uid), is_of_pod=code is grpc.StatusCode.NOT_FOUND)
            return _read(reply, request)

    def wait(self, *, timeout_s: float) -> bool:
        """See the port."""
        time.sleep(min(POLL_S, timeout_s))
        return True

    def close(self) -> None:
        """Close the channel; a question that is asked ends."""
        self._channel.close()

    def _why(self, code: grpc.StatusCode, said: str, uid: str) -> str:
        """Why there is no answer, and what helps where waiting does not."""
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return f"kubelet serves no pods at {self._socket} ({said}): it does from 1.37 on; else set VPC_IPAMD_POD_FACTS=annotations"
        if code is grpc.StatusCode.NOT_FOUND:
            return f"kubelet does not have pod {printable(uid)}"
        if code is grpc.StatusCode.FAILED_PRECONDITION:
            return f"kubelet is starting ({said})"
        return f"kubelet does not answer at {self._socket} ({said})"


def _read(reply: pods_pb2.GetPodResponse | None, request: AttachRequest) -> PodFacts:
    """What a pod tells that kubelet has; an answer about another one tells nothing."""
    names = request.names
    if reply is None:  # grpcio returns it for a message that was cut off
        return PodFacts(Wish.UNKNOWN, "kubelet's answer was cut off")
    try:
        pod = pods_pb2.Pod.FromString(reply.pod)
    except DecodeError:
        return PodFacts(Wish.UNKNOWN, "kubelet's answer is no pod")
    found = pod.metadata
    if (found.uid, found.namespace, found.name) != (names.pod_uid, names.pod_namespace, names.pod_name):
        other = printable(f"{found.namespace}/{found.name}")
        return PodFacts(Wish.UNKNOWN, f"kubelet's answer is about another pod, {other}", is_of_pod=True)
    is_wanted = any(POD_ENI in container.resources.limits for container in pod.spec.containers)
    why = f"{'a' if is_wanted else 'no'} container of the pod limits {POD_ENI}"
    return PodFacts(Wish.YES if is_wanted else Wish.NO, why, found.annotations.get(POD_ENI, ""))
