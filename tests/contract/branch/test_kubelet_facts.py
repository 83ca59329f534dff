"""The adapter against kubelet's pods service on a Unix socket: the pod there from the start, late, or never; a kubelet that starts,
that has no such service, that is silent, dead, back, or talks nonsense.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from ipamd.model.cni_request import AttachRequest, SandboxNames
from ipamd.model.ids import parse_key
from ipamd.model.legs.branch_requirement import AttachMode, choose_attach_mode
from ipamd.model.pod_annotations import POD_ENI
from ipamd.model.pod_facts import GroupRequirement, PodFacts
from ipamd.pb import pods_pb2 as pb
from ipamd.pb import pods_pb2_grpc
from ipamd.sandbox.legs.branch import FACTS_S
from ipamd.sandbox.legs.pod_facts import ANSWER_MAX_BYTES, POLL_S, KubeletFacts
from tests.patience import PATIENCE_S

UID = "4f6c0a7e-0000-4000-8000-000000000001"
NAMES = SandboxNames("default", "web-0", UID)
SHORT_S = 0.3

MARSHALLED = base64.b64decode(
    "CrgBCgV3ZWItMBIEd2ViLRoHZGVmYXVsdCIAKiQ0ZjZjMGE3ZS0wMDAwLTQwMDAtODAwMC0wMDAwMDAwMDAwMDEyAjEyOABCAFoKCgNhcHASA3dlYmIiChtrdWJlcm5l"
    "dGVzLmlvL2NvbmZpZy5zb3VyY2USA2FwaWJAChl2cGMuYW1hem9uYXdzLmNvbS9wb2QtZW5pEiNbeyJlbmlJZCI6ImVuaS0wYTFiMmMzZDRlNWY2MDcxOCJ9XRK3ARIa"
    "CgFhEgFpKgBCAGoAcgCAAQCIAQCQAQCiAQASfAoBYhIBaSoAQmIKDQoDY3B1EgYKBDI1MG0KIAoZdnBjLmFtYXpvbmF3cy5jb20vcG9kLWVuaRIDCgExEg0KA2NwdRIG"
    "CgQyNTBtEiAKGXZwYy5hbWF6b25hd3MuY29tL3BvZC1lbmkSAwoBMWoAcgCAAQCIAQCQAQCiAQAaADIAQgBKAFIBblgAYABoAIIBAIoBAJoBAMIBABoiCgdQZW5kaW5n"
    "GgAiACoIMTAuMC4wLjEyAEoAWgByAIgBAA=="
)
"""A pod as k8s.io/api v0.37.2 marshals it: two containers, of which the second limits the resource; annotation, labels and status."""

ANNOTATION = '[{"eniId":"eni-0a1b2c3d4e5f60718"}]'


def pod(*, limits: tuple[str, ...] = (), annotation: str = "", uid: str = UID, name: str = "web-0") -> bytes:
    """One as kubelet answers it."""
    made = pb.Pod(metadata=pb.ObjectMeta(name=name, namespace="default", uid=uid))
    if annotation:
        made.metadata.annotations[POD_ENI] = annotation
    container = made.spec.containers.add()
    for limit in limits:
        container.resources.limits[limit].string = "1"
    return made.SerializeToString()


class Kubelet(pods_pb2_grpc.PodsServicer):
    """The other side: `answers` are given in turn, the last one again and again; each is a pod's bytes, or an error."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[str] = []
        self.answers: list[bytes | tuple[grpc.StatusCode, str]] = []
        self.go = threading.Event()
        self.go.set()
        self.server: grpc.Server | None = None

    def start(self, *, has_service: bool = True) -> None:
        """Listen, as after a restart of the real one: the old socket is removed."""
        self.path.unlink(missing_ok=True)
        self.server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_send_message_length", -1)])
        if has_service:
            pods_pb2_grpc.add_PodsServicer_to_server(self, self.server)  # type: ignore[no-untyped-call]  # generated
        self.server.add_insecure_port(f"unix:{self.path}")
        self.server.start()

    def stop(self) -> None:
        """End; nobody listens any more."""
        if self.server is not None:
            self.server.stop(0).wait(PATIENCE_S)
            self.server = None
        self.go.set()

    def GetPod(self, request: pb.GetPodRequest, context: grpc.ServicerContext) -> pb.GetPodResponse:
        """See the proto."""
        self.asked.append(request.podUID)
        self.go.wait(PATIENCE_S)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, tuple):
            context.abort(*answer)
            raise AssertionError
        return pb.GetPodResponse(pod=answer)


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    """One that serves."""
    made = Kubelet(tmp_path / "pods-api.sock")
    made.start()
    yield made
    made.stop()


@pytest.fixture
def adapter(kubelet: Kubelet) -> Iterator[KubeletFacts]:
    """The adapter at its socket."""
    made = KubeletFacts(socket=str(kubelet.path))
    yield made
    made.close()


def ask(adapter: KubeletFacts, *, timeout_s: float = PATIENCE_S, names: SandboxNames = NAMES) -> PodFacts:
    """What is known of the pod."""
    request = AttachRequest(parse_key("c" * 64, "eth0"), "/run/netns/x", "vpc-ipamd", "1.0.0", "digest", names)
    return adapter.facts(request, timeout_s=timeout_s)


def test_a_pod_as_kubernetes_marshals_it(kubelet: Kubelet, adapter: KubeletFacts) -> None:
    """Asked by its UID; a limit of any container counts, and the annotation is that of now. Both numbers and types are right."""
    kubelet.answers = [MARSHALLED]
    assert ask(adapter) == PodFacts(GroupRequirement.YES, f"a container of the pod limits {POD_ENI}", ANNOTATION)
    assert kubelet.asked == [UID]


@pytest.mark.parametrize(
    ("answer", "wish", "way"),
    [
        (pod(limits=("cpu", POD_ENI)), GroupRequirement.YES, AttachMode.WAIT),
        (pod(limits=("cpu", POD_ENI), annotation=ANNOTATION), GroupRequirement.YES, AttachMode.BRANCH),
        (pod(limits=("cpu",)), GroupRequirement.NO, AttachMode.POOL),
        (pod(), GroupRequirement.NO, AttachMode.POOL),
        (pod(annotation=ANNOTATION), GroupRequirement.NO, AttachMode.REFUSE),
    ],
)
def test_what_a_pod_tells(
    kubelet: Kubelet, adapter: KubeletFacts, answer: bytes, wish: GroupRequirement, way: AttachMode
) -> None:
    """Its limits tell what it wants, its annotation what it was given."""
    kubelet.answers = [answer]
    facts = ask(adapter)
    assert (facts.requirement, choose_attach_mode(facts).mode) == (wish, way)


def test_an_annotation_that_comes_is_seen(kubelet: Kubelet, adapter: KubeletFacts) -> None:
    """A wait ends soon, with the word that something may have changed; then the facts are those of now."""
    kubelet.answers = [pod(limits=(POD_ENI,)), pod(limits=(POD_ENI,), annotation=ANNOTATION)]
    assert choose_attach_mode(ask(adapter)).mode is AttachMode.WAIT
    began = time.monotonic()
    assert adapter.wait(timeout_s=0.01)
    assert time.monotonic() - began < POLL_S
    assert choose_attach_mode(ask(adapter)).mode is AttachMode.BRANCH


@pytest.mark.parametrize(
    "early",
    [
        (grpc.StatusCode.NOT_FOUND, f"pod with UID {UID} not found"),
        (grpc.StatusCode.FAILED_PRECONDITION, "Kubelet is initializing"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit"),
        (grpc.StatusCode.UNAVAILABLE, "it ends"),
    ],
)
def test_what_passes_is_asked_again(kubelet: Kubelet, adapter: KubeletFacts, early: tuple[grpc.StatusCode, str]) -> None:
    """A pod that is listed late, a kubelet that starts, others that ask too often; and what does not pass is told in time (I11)."""
    kubelet.answers = [early, early, pod()]
    assert ask(adapter).requirement is GroupRequirement.NO
    assert len(kubelet.asked) == 3
    kubelet.answers = [early]
    began = time.monotonic()
    facts = ask(adapter, timeout_s=FACTS_S)  # long enough for one answer on a busy machine
    assert time.monotonic() - began < PATIENCE_S / 2
    assert (facts.requirement, choose_attach_mode(facts).mode) == (GroupRequirement.UNKNOWN, AttachMode.REFUSE)
    words = {grpc.StatusCode.NOT_FOUND: "does not have pod", grpc.StatusCode.FAILED_PRECONDITION: "is starting"}
    assert words.get(early[0], early[1]) in facts.reason
    assert facts.is_of_pod is (early[0] is grpc.StatusCode.NOT_FOUND), "of the others kubelet says nothing against any pod"


def test_a_kubelet_without_the_service(kubelet: Kubelet, adapter: KubeletFacts) -> None:
    """Before 1.37, or with its gate off: told at once, with what to set."""
    kubelet.stop()
    kubelet.start(has_service=False)
    facts = ask(adapter)
    assert facts.requirement is GroupRequirement.UNKNOWN
    assert "from 1.37 on; else set VPC_IPAMD_POD_SECURITY_GROUP_SOURCE=annotations" in facts.reason


def test_a_kubelet_that_is_silent_dead_and_back(kubelet: Kubelet, adapter: KubeletFacts) -> None:
    """Silence is no answer, as long as was said; the same channel finds the next kubelet, also in the middle of a question."""
    kubelet.answers = [pod()]
    kubelet.go.clear()
    assert ask(adapter, timeout_s=SHORT_S).requirement is GroupRequirement.UNKNOWN
    kubelet.stop()
    facts = ask(adapter, timeout_s=SHORT_S)
    assert facts.requirement is GroupRequirement.UNKNOWN
    assert f"kubelet does not answer at {kubelet.path}" in facts.reason
    found: list[PodFacts] = []
    asking = threading.Thread(target=lambda: found.append(ask(adapter)), daemon=True)
    asking.start()
    kubelet.start()
    asking.join(PATIENCE_S)
    assert [facts.requirement for facts in found] == [GroupRequirement.NO]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x0a\xff\xff",
        b"not a pod",
        b"\x0a\x04\x0a\x02\xff\xfe",
        pod(uid="another"),
        pod(name="other\x1b[2J"),
        pod() + b"\x0a\x02\x0a\x00",
        pod(annotation="x" * ANSWER_MAX_BYTES),
        (grpc.StatusCode.PERMISSION_DENIED, "no\x1b[2J\n"),
    ],
)
def test_nonsense_tells_nothing(kubelet: Kubelet, adapter: KubeletFacts, answer: bytes | tuple[grpc.StatusCode, str]) -> None:
    """What is no pod, another pod, or too large: nobody tells, so the pod gets no address (I19); the words are safe to print."""
    kubelet.answers = [answer]
    facts = ask(adapter, timeout_s=SHORT_S)
    assert facts.requirement is GroupRequirement.UNKNOWN
    assert facts.reason.isprintable()


def test_a_sandbox_without_a_uid_is_not_asked_for(kubelet: Kubelet, adapter: KubeletFacts) -> None:
    """kubelet knows pods by their UID."""
    facts = ask(adapter, names=SandboxNames("default", "web-0", ""))
    assert facts.requirement is GroupRequirement.UNKNOWN
    assert "K8S_POD_UID" in facts.reason
    assert kubelet.asked == []
