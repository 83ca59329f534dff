"""What a pod wants, by the annotations of its sandbox, and what an ADD does by what is known."""

from __future__ import annotations

import json

import pytest

from ipamd.model.family import IPV4, IPV6, Family
from ipamd.model.legs.branch_eni import parse_pod_eni
from ipamd.model.legs.branch_errors import BranchAnnotationError
from ipamd.model.legs.branch_requirement import NOBODY_MARKS, AttachMode, Decision, choose_attach_mode
from ipamd.model.pod_annotations import CONFIG_SOURCE, FROM_API, MARK, POD_ENI
from ipamd.model.pod_facts import NONE, REQUIRED, GroupRequirement, PodFacts, read_annotations
from tests.fakes.pod_facts import annotation
from tests.table import each_of

API = {CONFIG_SOURCE: FROM_API}
GIVEN = {POD_ENI: "[{}]"}


@each_of(
    [
        # annotations, whether the policy is known -> wish, way
        (None, False, GroupRequirement.UNKNOWN, AttachMode.REFUSE),
        (None, True, GroupRequirement.UNKNOWN, AttachMode.REFUSE),
        ({}, False, GroupRequirement.UNMARKED, AttachMode.POOL),
        ({}, True, GroupRequirement.OLDER, AttachMode.REFUSE),
        (API, False, GroupRequirement.UNMARKED, AttachMode.POOL),
        (API, True, GroupRequirement.OLDER, AttachMode.REFUSE),
        (API | GIVEN, False, GroupRequirement.UNMARKED, AttachMode.BRANCH),
        (API | GIVEN, True, GroupRequirement.OLDER, AttachMode.BRANCH),
        (API | {MARK: REQUIRED}, False, GroupRequirement.YES, AttachMode.WAIT),
        (API | {MARK: REQUIRED} | GIVEN, False, GroupRequirement.YES, AttachMode.BRANCH),
        (API | {MARK: REQUIRED, POD_ENI: ""}, True, GroupRequirement.YES, AttachMode.WAIT),
        (API | {MARK: NONE}, False, GroupRequirement.NO, AttachMode.POOL),
        (API | {MARK: NONE}, True, GroupRequirement.NO, AttachMode.POOL),
        (API | {MARK: NONE} | GIVEN, True, GroupRequirement.NO, AttachMode.REFUSE),
        (API | {MARK: "Required"}, False, GroupRequirement.UNKNOWN, AttachMode.REFUSE),
        (API | {MARK: ""} | GIVEN, False, GroupRequirement.UNKNOWN, AttachMode.REFUSE),
        # No policy sees a pod of a file, and the controller does not annotate it there: what its file says of both is not believed.
        ({CONFIG_SOURCE: "file"}, False, GroupRequirement.NO, AttachMode.POOL),
        ({CONFIG_SOURCE: "file"}, True, GroupRequirement.NO, AttachMode.POOL),
        ({CONFIG_SOURCE: "http", MARK: REQUIRED}, True, GroupRequirement.NO, AttachMode.POOL),
        ({CONFIG_SOURCE: "file"} | GIVEN, False, GroupRequirement.NO, AttachMode.REFUSE),
    ]
)
def test_by_annotations(
    annotations: dict[str, str] | None, is_policy_known: bool, wish: GroupRequirement, way: AttachMode
) -> None:
    """I19: an address of the pool only for a pod that wants no groups, or where nobody marks pods; that is a condition."""
    facts = read_annotations(annotations, is_policy_known=is_policy_known)
    decision = choose_attach_mode(facts)
    assert (facts.requirement, decision.mode) == (wish, way)
    of_the_api = (annotations or {}).get(CONFIG_SOURCE) == FROM_API
    assert facts.is_of_pod == (wish is GroupRequirement.UNKNOWN and annotations is not None), "others' marks may be right"
    assert facts.is_marked == (of_the_api and wish in (GroupRequirement.YES, GroupRequirement.NO))
    assert (decision.condition == NOBODY_MARKS) == (wish is GroupRequirement.UNMARKED and way is AttachMode.POOL)
    assert bool(decision.advice) == (way is AttachMode.REFUSE)
    assert decision.reason.isprintable()


@each_of(
    [
        (GroupRequirement.YES, "x", AttachMode.BRANCH),
        (GroupRequirement.YES, "", AttachMode.WAIT),
        (GroupRequirement.NO, "x", AttachMode.REFUSE),
        (GroupRequirement.NO, "", AttachMode.POOL),
        (GroupRequirement.UNMARKED, "x", AttachMode.BRANCH),
        (GroupRequirement.UNMARKED, "", AttachMode.POOL),
        (GroupRequirement.OLDER, "x", AttachMode.BRANCH),
        (GroupRequirement.OLDER, "", AttachMode.REFUSE),
        (GroupRequirement.UNKNOWN, "x", AttachMode.REFUSE),
        (GroupRequirement.UNKNOWN, "", AttachMode.REFUSE),
    ]
)
def test_every_case(wish: GroupRequirement, annotation: str, way: AttachMode) -> None:
    """Each wish with and without an annotation: no case is left to chance."""
    assert choose_attach_mode(PodFacts(wish, "why", annotation)).mode is way


def test_what_a_refusal_says() -> None:
    """What tells it, and the next step of whoever reads it (I14); a text of the pod's author is cut and made safe."""
    older = choose_attach_mode(read_annotations(API, is_policy_known=True))
    assert older == Decision(
        AttachMode.REFUSE,
        "the pod has no annotation vpc-ipamd/pod-eni: it is older than the admission policy",
        "delete the pod once; its successor is marked",
    )
    silent = choose_attach_mode(PodFacts(GroupRequirement.UNKNOWN, "kubelet does not answer"))
    assert (silent.reason, silent.advice[:5]) == ("kubelet does not answer", "retry")
    stranger = choose_attach_mode(read_annotations(API | {MARK: "\x1b[2J" * 100}, is_policy_known=False))
    assert len(stranger.reason) < 200
    assert "\x1b" not in stranger.reason


def of_ipv6(address: str, subnet: str = "2001:db8:9::/64") -> tuple[str, Family, dict[str, object]]:
    """A row of IPv6."""
    return "ipv6Addr|subnetV6Cidr", IPV6, {"ipv6Addr": address, "subnetV6Cidr": subnet}


def of_ipv4(address: str, subnet: str = "10.0.128.0/17") -> tuple[str, Family, dict[str, object]]:
    """A row of IPv4."""
    return "privateIp|subnetCidr", IPV4, {"privateIp": address, "subnetCidr": subnet}


@each_of(
    [
        *(("vlanId", IPV4, {"vlanId": vlan}) for vlan in (0, -1, 4095, 2**70, 153, 154, 155, 2.0, True, None, "2", [2])),
        *(("eniId", IPV4, {"eniId": eni}) for eni in ("", "eni-", "eni-XYZ", "eni-08cc\n", "eni-" + "a" * 18, None, 5)),
        *(
            ("ifAddress", IPV4, {"ifAddress": mac})
            for mac in (
                "",
                "01:00:5e:00:00:01",
                "ff:ff:ff:ff:ff:ff",
                "00:00:00:00:00:00",
                "06-25-70-70-b1-69",
                "06:25:70:70:b1",
                1,
            )
        ),
        # What no host of a subnet has: its first four addresses are router's, resolver's and AWS's, and the last one.
        *map(of_ipv4, ("10.0.128.0", "10.0.128.1", "10.0.128.2", "10.0.128.3", "10.0.255.255")),
        *map(of_ipv4, ("", "10.0.7.7", "10.0.129.9/32", "010.0.129.9", "0x0a.0.129.9", " 10.0.129.9", "::1", "\ud800", None)),
        *map(of_ipv6, ("2001:db8:9::", "2001:db8:9::1", "2001:db8:9::2", "2001:db8:9::3", "2001:db8:9::ffff:ffff:ffff:ffff")),
        # With a zone it would be the address of another to the kernel, and of nobody to a comparison.
        *map(of_ipv6, ("2001:db8:9::66%eth0", "2001:db8:9::66%", "2001:db8:10::66", "10.0.129.9", "")),
        # In a block that is no subnet of a VPC nobody knows the router, and any address is "within its subnet".
        *(
            of_ipv4("10.0.129.9", block)
            for block in ("0.0.0.0/0", "10.0.0.0/8", "10.0.129.8/29", "10.0.129.9/32", "10.0.129.0/17")
        ),
        *(of_ipv6("2001:db8:9::66", block) for block in ("::/0", "2001:db8::/32", "2001:db8:9::/120")),
        of_ipv4("127.0.0.9", "127.0.0.0/16"),
        of_ipv4("169.254.172.9", "169.254.0.0/16"),
        of_ipv4("224.0.0.9", "224.0.0.0/16"),
        of_ipv4("240.0.0.9", "240.0.0.0/16"),
        of_ipv6("::ffff:10.0.129.9", "::/64"),
        of_ipv6("fe80::9", "fe80::/64"),
        # In standard mode the node's own questions would go to the sandbox.
        of_ipv6("fd00:ec2::253", "fd00:ec2::/64"),
        of_ipv6("ff02::9", "ff02::/64"),
    ]
)
def test_an_annotation_that_cannot_be(field: str, family: Family, changed: dict[str, object]) -> None:
    """Anybody may have written it: the field is named, and nothing else can come of it."""
    with pytest.raises(BranchAnnotationError) as refusal:
        parse_pod_eni(annotation(2, **changed), family=family)
    assert any(f": {name} " in refusal.value.message for name in field.split("|")), refusal.value.message


@each_of(["", "null", "{}", "[]", "[null]", "[[]]", '["x"]', "[{}]", "NaN", "[" * 5000, " " * 17_000, "\ud800", "\x00"])
def test_a_text_that_is_none(text: str) -> None:
    """Neither a list of objects nor a reason to fail otherwise than by saying so."""
    with pytest.raises(BranchAnnotationError):
        parse_pod_eni(text, family=IPV4)


@each_of(
    [
        *((IPV4, {"vlanId": vlan}, "10.0.128.1") for vlan in (1, 120, 152, 156, 4094)),
        (IPV4, {"eniId": "eni-0123456789abcdef0", "ifAddress": "06:25:70:70:B1:69", "of a later release": [{}]}, "10.0.128.1"),
        (IPV4, {"vlanId": ..., "VLANID": 2}, "10.0.128.1"),
        (IPV4, {"ipv6Addr": "", "subnetV6Cidr": ""}, "10.0.128.1"),
        (IPV6, {"privateIp": "", "subnetCidr": None}, "fe80:ec2::1"),
        *(
            (*of_ipv4("10.0.129.9", block)[1:], gateway)
            for block, gateway in (("10.0.129.0/28", "10.0.129.1"), ("10.0.0.0/16", "10.0.0.1"))
        ),
        (*of_ipv4("10.0.128.4")[1:], "10.0.128.1"),
        (*of_ipv6("2001:DB8:9:0::66", "2001:db8::/44")[1:], "fe80:ec2::1"),
    ]
)
def test_an_annotation_that_can_be(family: Family, changed: dict[str, object], gateway: str) -> None:
    """As the controller writes it, or one of a later release or another subnet."""
    fields = {name: value for name, value in json.loads(annotation(2))[0].items() if changed.get(name) is not ...}
    told = json.dumps([fields | {name: value for name, value in changed.items() if value is not ...}, {}])
    found = parse_pod_eni(told, family=family)
    assert str(found.gateway) == gateway
    assert "%" not in str(found.address)
    assert found.mac == found.mac.lower()
