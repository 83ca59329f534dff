"""What others say of a pod: its annotations in a request, the one that names its branch ENI, and kubelet's answer. None of it makes a
pod that must have security groups of its own one that gets an address of the pool (I19), and what is taken is within its bounds.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_network
from pathlib import Path
from random import Random
from typing import Any

import grpc

from fuzz import json_text
from fuzz.log_sink import LogSink
from fuzz.mutation import mutated, noise
from fuzz.target import Case, Target, Violation, blob
from ipamd.model.cni_request import AttachRequest, SandboxNames
from ipamd.model.errors import IpamError
from ipamd.model.family import IPV4, IPV6, Family
from ipamd.model.ids import parse_key
from ipamd.model.kernel_numbers import TABLE_BASE
from ipamd.model.legs.branch_eni import KERNELS_TABLES, BranchEni, parse_pod_eni
from ipamd.model.legs.branch_errors import BranchAnnotationError
from ipamd.model.legs.branch_requirement import AttachMode, choose_attach_mode
from ipamd.model.pod_annotations import ANNOTATIONS_READ, CONFIG_SOURCE, MARK, POD_ANNOTATIONS, POD_ENI
from ipamd.model.pod_facts import GroupRequirement, PodFacts, read_annotations
from ipamd.pb import cni_pb2, pods_pb2
from ipamd.rpc.envelope import decode_attach
from ipamd.sandbox.legs.pod_facts import KubeletFacts

NAMES = SandboxNames("default", "web-0", "uid-1")
ANSWER_S = 5.0
GOOD = (
    '[{"eniId":"eni-0a1b2c3d4e5f60718","ifAddress":"06:00:00:00:00:01","privateIp":"10.9.1.5","ipv6Addr":"2600:1f::5","vlanId":5,'
    '"subnetCidr":"10.9.0.0/16","subnetV6Cidr":"2600:1f::/64","associationID":"trunk-assoc-1"}]'
)
FIELDS = ("eniId", "ifAddress", "privateIp", "ipv6Addr", "vlanId", "vlanID", "subnetCidr", "subnetV6Cidr", "x")
VALUES = (
    '"eni-0a1b"', '"ENI-0a1b"', '"01:00:00:00:00:01"', '"06:00:00:00:00:01"', '"10.9.1.5"', '"10.9.1.5/32"', '"fe80::1"', '"::"',
    '"10.9.0.0/16"', '"10.9.1.5/31"', '"0.0.0.0/0"', '"::/0"', "0", "1", "153", "155", "4094", "4095",
    "-1", "1e3", "5.0", "true", "null",
    '"5"', "[]", "{}",
)  # fmt: skip
MARKS = ("required", "none", "Required", "", "\x1b[2J", "x" * 300)
SOURCES = ("api", "file", "http", "", "\u202e", "y" * 300)


class PodFactsTarget(Target):
    """A case: `config` (an ADD's configuration), `annotation` (text), `pod` (bytes of kubelet's answer)."""

    def __init__(self) -> None:
        self._log = LogSink()
        self._directory = Path(tempfile.mkdtemp(prefix="fuzz-"))
        self._pod: bytes = b""
        self._server = grpc.server(ThreadPoolExecutor(2))
        handlers: dict[str, Any] = {"GetPod": grpc.unary_unary_rpc_method_handler(lambda _request, _context: self._pod)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1alpha1.Pods", handlers),))
        path = self._directory / "pods.sock"
        self._server.add_insecure_port(f"unix:{path}")
        self._server.start()
        self._kubelet = KubeletFacts(socket=str(path))

    def generate(self, random: Random) -> Case:
        annotation = _annotation(random)
        return {"config": _config(random, annotation), "annotation": annotation, "pod": _answer(random, annotation)}

    def run(self, case: Case) -> None:
        self._by_annotations(blob(case["config"]))
        for family in (IPV4, IPV6):
            with contextlib.suppress(BranchAnnotationError):
                _judge(parse_pod_eni(case["annotation"], family=family), family)
        self._by_kubelet(blob(case["pod"]))
        self._log.judge()

    def _by_annotations(self, config: bytes) -> None:
        request = cni_pb2.ExecRequest(verb="ADD", container_id="c", ifname="eth0", netns="/run/netns/c", config=config)
        try:
            annotations = decode_attach(request).annotations
        except IpamError:
            return
        told = _told(config)
        if (annotations is None) != (told is None) or (annotations or {}) != (told or {}):
            raise Violation("other annotations", f"{annotations} were read, {told} were handed over")
        for is_policy_known in (False, True):
            facts = read_annotations(annotations, is_policy_known=is_policy_known)
            found = {MARK: "required"} if told is None else told  # nothing handed over: nobody can tell
            wants = found.get(MARK) == "required" and found.get(CONFIG_SOURCE, "api") == "api"
            _judge_way(facts, wants=wants, has_annotation=bool(found.get(POD_ENI)))

    def _by_kubelet(self, answer: bytes) -> None:
        self._pod = answer
        request = AttachRequest(parse_key("c", "eth0"), "/run/netns/c", "vpc-ipamd", "1.0.0", "digest", NAMES)
        facts = self._kubelet.facts(request, timeout_s=ANSWER_S)
        wants, has_annotation = True, False
        with contextlib.suppress(Exception):  # what protobuf does not read is no answer, and then nothing may be given
            pod = pods_pb2.Pod.FromString(pods_pb2.GetPodResponse.FromString(answer).pod)
            if (pod.metadata.uid, pod.metadata.namespace, pod.metadata.name) == (NAMES.pod_uid, "default", "web-0"):
                wants = any(POD_ENI in one.resources.limits for one in pod.spec.containers)
                has_annotation = bool(pod.metadata.annotations.get(POD_ENI))
        _judge_way(facts, wants=wants, has_annotation=has_annotation)

    def check(self) -> None:
        pod = pods_pb2.Pod(metadata=pods_pb2.ObjectMeta(name="web-0", namespace="default", uid=NAMES.pod_uid))
        self._pod = pods_pb2.GetPodResponse(pod=pod.SerializeToString()).SerializeToString()
        request = AttachRequest(parse_key("c", "eth0"), "/run/netns/c", "vpc-ipamd", "1.0.0", "digest", NAMES)
        if self._kubelet.facts(request, timeout_s=ANSWER_S).requirement is not GroupRequirement.NO:
            raise Violation("unanswered", "a good answer is not read any more")

    def close(self) -> None:
        self._kubelet.close()
        self._server.stop(None)
        shutil.rmtree(self._directory, ignore_errors=True)


def _told(config: bytes) -> dict[str, str] | None:
    """What a reader of another kind finds among the annotations that we read."""
    handed = (json_text.strict(config).get("runtimeConfig") or {}).get(POD_ANNOTATIONS)
    return None if handed is None else {name: handed[name] for name in ANNOTATIONS_READ if name in handed}


def _judge_way(facts: PodFacts, *, wants: bool, has_annotation: bool) -> None:
    decision = choose_attach_mode(facts)
    if wants and decision.mode is AttachMode.POOL:
        raise Violation("pool address", f"a pod that must have groups would get one: {facts.reason}")
    if decision.mode is AttachMode.BRANCH and not has_annotation:
        raise Violation("no branch", "a branch ENI is attached that nobody named")
    if not (decision.reason + decision.advice).isprintable():
        raise Violation("unsafe text", repr(decision.reason))


def _judge(branch: BranchEni, family: Family) -> None:
    """What was taken is within its bounds, each looked at in its own way."""
    first = int(branch.mac.partition(":")[0], 16)
    if not 1 <= branch.vlan <= 4094 or TABLE_BASE + branch.vlan in KERNELS_TABLES or first & 1 or len(branch.mac) != 17:
        raise Violation("out of bounds", f"{branch}")
    own = ip_network(f"{branch.address}")
    if own.version != family.any_route.version or own.is_loopback or own.is_multicast or own.is_link_local or own.is_unspecified:
        raise Violation("no pod's address", f"{branch.address}")
    if branch.address == branch.gateway or not branch.eni_id.startswith("eni-"):
        raise Violation("no pod's address", f"{branch}")


def _annotation(random: Random) -> str:
    """Text: JSON text that `json` reads has no lone surrogates, which no request could carry either."""
    kind = random.random()
    if kind < 0.1:
        made = GOOD
    elif kind < 0.6:
        fields = json.loads(GOOD)[0]
        members = [(name, json.dumps(value)) for name, value in fields.items() if random.random() < 0.95]
        members += [(random.choice(FIELDS), random.choice(VALUES)) for _ in range(random.randrange(3))]
        made = "[{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in members) + "}]"
    elif kind < 0.65:
        made = random.choice(("[", '{"a":', "[[")) * random.randrange(1, 9000)
    else:
        made = json_text.text(random)
    data = made.encode(errors="replace")
    return (mutated(random, data) if random.random() < 0.2 else data).decode(errors="replace")


def _config(random: Random, annotation: str) -> bytes:
    if random.random() < 0.1:
        return json_text.configuration(random)
    handed: dict[str, Any] = {"team": "blue"}
    for name, values in ((MARK, MARKS), (CONFIG_SOURCE, SOURCES), (POD_ENI, (annotation, annotation, ""))):
        if random.random() < 0.7:
            handed[name] = random.choice(values) if random.random() < 0.95 else random.choice((None, 7, [], {}))
    runtime: Any = {POD_ANNOTATIONS: handed}
    if random.random() < 0.1:
        runtime = random.choice((None, [], {}, 7, {POD_ANNOTATIONS: None}, {POD_ANNOTATIONS: []}, {POD_ANNOTATIONS: {}}))
    data = json.dumps({"cniVersion": "1.0.0", "name": "vpc-ipamd", "type": "vpc-cni", "runtimeConfig": runtime}).encode()
    return mutated(random, data) if random.random() < 0.3 else data


def _answer(random: Random, annotation: str) -> bytes:
    pod = pods_pb2.Pod(metadata=pods_pb2.ObjectMeta(name="web-0", namespace="default", uid=NAMES.pod_uid))
    if random.random() < 0.1:
        pod.metadata.uid = random.choice(("", "uid-2", "UID-1"))
    if random.random() < 0.5:
        pod.metadata.annotations[POD_ENI] = annotation
    for _ in range(random.randrange(3)):
        limits = pod.spec.containers.add().resources.limits
        limits[random.choice((POD_ENI, "cpu", "", "vpc.amazonaws.com/pod-enis"))].string = random.choice(("1", "0", ""))
    data = pod.SerializeToString()
    if random.random() < 0.4:
        data = noise(random, 300) if random.random() < 0.2 else mutated(random, data)
    answer = pods_pb2.GetPodResponse(pod=data).SerializeToString()
    return mutated(random, answer) if random.random() < 0.1 else answer


def make() -> Target:
    """Make the target."""
    return PodFactsTarget()
