"""Which sandboxes get which SNAT, which annotations are refused, and who knows the choice afterwards (docs/adr/0082)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.model.attachment import Attachment
from ipamd.model.cni_request import AttachRequest, SandboxNames
from ipamd.model.family import IPV6
from ipamd.model.history_answer import HistoryQuestion
from ipamd.model.ids import IfName
from ipamd.model.pod_annotations import SNAT
from ipamd.model.pod_snat import PodSnat
from ipamd.model.pod_snat_choice import LISTS, PodSnatChoice
from ipamd.model.refusals import RefusalCode
from ipamd.report.explain import explain
from ipamd.report.legs.explanations import OLDER_THAN_SETTING, SNAT_MEANINGS
from ipamd.settings import NetworkConfig
from tests.fakes.node import FakeNode
from tests.refusing import refused_with

ALLOWED = ("web",)
IN_SUBNET = IPv4Network("10.0.0.0/16")
ELSEWHERE = IPv4Network("192.168.0.0/16")
MakeNode = Callable[..., FakeNode]


@pytest.fixture
def make_node(tmp_path: Path) -> MakeNode:
    """Nodes that serve with settings of the test's choice."""

    def make(**settings: object) -> FakeNode:
        node = FakeNode(tmp_path, network=NetworkConfig(**settings))  # type: ignore[arg-type]
        node.bring_up()
        return node

    return make


def request(node: FakeNode, *, namespace: str = "web", annotations: Mapping[str, str] | None = None) -> AttachRequest:
    """An ADD of pod `a` in a namespace."""
    return replace(node.request("a"), names=SandboxNames(namespace, "a", "uid"), annotations=annotations)


def attach(node: FakeNode, asked: AttachRequest) -> Attachment:
    """ADD."""
    return node.attacher.attach_sandbox(asked, deadline=Deadline.after(node.clock, 60.0), steps=StepTimer(node.clock))


@pytest.mark.parametrize("choice", [*PodSnat, None])
def test_an_allowed_annotation_chooses(make_node: MakeNode, choice: PodSnat | None) -> None:
    """Record, wiring and explanation have the choice; it outlives the process, and ends with the DEL."""
    node = make_node(snat_annotation_namespaces=ALLOWED)
    made = attach(node, request(node, annotations={SNAT: choice} if choice else {}))
    assert (made.snat, made.wiring.snat, node.wiring.wired[made.host_veth].snat) == (choice, choice, choice)
    node.crash()
    node.bring_up()
    (kept,) = node.datastore.attachments()
    assert kept.snat is choice
    sentences = explain(node.app.introspection.sources, HistoryQuestion(str(made.address), 10)).sentences
    assert any(SNAT in text and SNAT_MEANINGS[choice] in text for text in sentences) if choice else SNAT not in str(sentences)
    assert node.delete("a")
    assert node.datastore.attachments() == ()


@pytest.mark.parametrize(
    ("namespace", "annotations", "code"),
    [
        ("default", {SNAT: "none"}, RefusalCode.SNAT_NOT_ALLOWED),
        ("", {SNAT: "none"}, RefusalCode.SNAT_NOT_ALLOWED),
        ("web", {SNAT: "None"}, RefusalCode.SNAT_VALUE_UNKNOWN),
        ("web", {SNAT: ""}, RefusalCode.SNAT_VALUE_UNKNOWN),
        ("web", None, RefusalCode.SNAT_ANNOTATION_UNKNOWN),
    ],
)
def test_an_annotation_that_may_not_be_followed_refuses_the_add(
    make_node: MakeNode, namespace: str, annotations: Mapping[str, str] | None, code: RefusalCode
) -> None:
    """The refusal can be repeated, and the pod gets nothing: no address is taken, and none cools."""
    node = make_node(snat_annotation_namespaces=ALLOWED)
    free = node.datastore.counts().free
    with refused_with(code) as refused:
        attach(node, request(node, namespace=namespace, annotations=annotations))
    assert refused.value.retryable
    assert (node.datastore.counts().free, node.wiring.wired) == (free, {})


def test_an_annotation_bounds_nothing_outside_its_namespaces(make_node: MakeNode) -> None:
    """A namespace in an annotation means nothing: that of CNI_ARGS decides."""
    node = make_node(snat_annotation_namespaces=ALLOWED)
    forged = {SNAT: "none", "io.kubernetes.pod.namespace": "web", "K8S_POD_NAMESPACE": "web"}
    with refused_with(RefusalCode.SNAT_NOT_ALLOWED):
        attach(node, request(node, namespace="default", annotations=forged))


def test_without_the_setting_the_annotation_is_not_read(make_node: MakeNode) -> None:
    """Off by default: a pod with the annotation is as any other."""
    node = make_node()
    assert attach(node, request(node, annotations={SNAT: "rubbish"})).snat is None


def test_a_runtime_without_annotations_serves_other_namespaces(make_node: MakeNode) -> None:
    """Only pods that might have chosen are refused; so is no further interface, whose network may not ask for annotations."""
    node = make_node(snat_annotation_namespaces=ALLOWED)
    assert attach(node, request(node, namespace="default")).snat is None
    further = request(node)
    assert attach(node, replace(further, key=replace(further.key, ifname=IfName("net1")))).snat is None


@pytest.mark.parametrize(
    ("exempt", "forced", "choice"),
    [
        (("web",), (), PodSnat.NONE),
        ((), ("web",), PodSnat.FORCE),
        ((IN_SUBNET,), (), PodSnat.NONE),
        ((), (IN_SUBNET,), PodSnat.FORCE),
        ((IN_SUBNET,), ("web",), PodSnat.FORCE),
        (("other", ELSEWHERE), (), None),
    ],
)
def test_lists_choose_by_namespace_before_address(
    make_node: MakeNode, exempt: tuple[object, ...], forced: tuple[object, ...], choice: PodSnat | None
) -> None:
    """A namespace decides before a CIDR of addresses; what is in no list is as the node's settings say."""
    node = make_node(snat_exempt_pods=exempt, snat_forced_pods=forced)
    assert attach(node, request(node)).snat is choice


def test_an_annotation_decides_before_the_lists(make_node: MakeNode) -> None:
    """What the operator lets a namespace choose is the pod's choice."""
    node = make_node(snat_annotation_namespaces=ALLOWED, snat_exempt_pods=("web",))
    assert attach(node, request(node, annotations={SNAT: "force"})).snat is PodSnat.FORCE
    assert attach(node, replace(request(node, annotations={}), key=node.key("b"))).snat is PodSnat.NONE


def test_what_amazon_vpc_cni_wires_has_no_choice(make_node: MakeNode) -> None:
    """Its plugin hands over no annotations and wires the sandbox itself, so neither annotation nor list applies."""
    node = make_node(snat_annotation_namespaces=ALLOWED, snat_exempt_pods=("web",))
    assert attach(node, replace(request(node), is_wired_by_caller=True)).snat is None


def test_pods_of_ipv6_cannot_choose(make_node: MakeNode) -> None:
    """They are never translated: the annotation is refused by a code, the lists have no meaning."""
    node = make_node(ipv4=False, ipv6=True, snat_annotation_namespaces=ALLOWED, snat_exempt_pods=("web",))
    with refused_with(RefusalCode.SNAT_NOT_APPLICABLE):
        attach(node, request(node, annotations={SNAT: "none"}))
    assert attach(node, request(node, annotations={})).snat is None


def test_the_leg_for_egress_is_not_concerned(make_node: MakeNode) -> None:
    """The choice is about the IPv4 address of the pool; the leg for egress by IPv6 is translated as before."""
    node = make_node(v6_egress=True, snat_exempt_pods=("web",))
    node.hostnet.egress_family = IPV6
    made = attach(node, request(node))
    assert made.snat is PodSnat.NONE
    assert made.other_address is not None


def test_a_lost_datastore_is_rebuilt_with_the_choice(make_node: MakeNode) -> None:
    """The kernel's sets have it, and the adopted row."""
    node = make_node(snat_exempt_pods=("web",))
    made = attach(node, request(node))
    node.runtime.run("a")
    node.crash(keep_datastore=False)
    node.bring_up()
    (adopted,) = node.datastore.attachments()
    assert (adopted.address, adopted.snat) == (made.address, PodSnat.NONE)


EXEMPT, FORCED = LISTS[PodSnat.NONE], LISTS[PodSnat.FORCE]


@pytest.mark.parametrize(
    ("choice", "snat", "outdated", "chooser"),
    [
        (PodSnatChoice(), None, "", "nothing"),
        (PodSnatChoice(exempt=("web",)), PodSnat.NONE, "", EXEMPT),
        (PodSnatChoice(exempt=("web",)), None, EXEMPT, "nothing"),
        (PodSnatChoice(), PodSnat.FORCE, FORCED, FORCED),
        (PodSnatChoice(forced=("web",)), PodSnat.NONE, FORCED, EXEMPT),
        (PodSnatChoice(annotated_namespaces=("web",)), PodSnat.NONE, "", SNAT),
        (PodSnatChoice(annotated_namespaces=("web",), exempt=("web",)), PodSnat.NONE, "", EXEMPT),
        (PodSnatChoice(annotated_namespaces=("web",), exempt=("web",)), None, EXEMPT, "nothing"),
        (PodSnatChoice(exempt=("web",), family=IPV6), None, "", "nothing"),
    ],
)
def test_a_pod_that_is_older_than_a_setting_is_known(
    make_node: MakeNode, choice: PodSnatChoice, snat: PodSnat | None, outdated: str, chooser: str
) -> None:
    """The list that would choose otherwise now is named, and the setting or annotation that may have chosen."""
    made = replace(attach(node := make_node(), request(node)), snat=snat)
    assert choice.outdated_setting(made) == outdated
    assert chooser in choice.chooser_of(made)


def test_explain_names_the_setting_that_a_pod_is_older_than(make_node: MakeNode) -> None:
    """Before and after the pod is added anew."""
    node = make_node()
    made = attach(node, request(node))
    sources = replace(node.app.introspection.sources, snat_choice=PodSnatChoice(exempt=("web",)))
    expected = OLDER_THAN_SETTING.format(setting=EXEMPT)
    assert expected in explain(sources, HistoryQuestion(str(made.address), 10)).sentences
    assert expected not in explain(node.app.introspection.sources, HistoryQuestion(str(made.address), 10)).sentences
