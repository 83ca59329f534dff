"""Every link of every leg of a sandbox counts as one that is left, whether its name or its alias tells."""

from __future__ import annotations

from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv6Address

import pytest

from ipamd.model.attachment import Attachment, veth_name
from ipamd.model.cni_request import NetnsIdentity
from ipamd.model.family import IPV4
from ipamd.model.ids import EniId, MacAddress, parse_key
from ipamd.model.kernel import HostVeth, KernelSurvey, VlanLink
from ipamd.model.legs.branch_eni import Branch
from ipamd.model.legs.egress import egress_veth_name
from ipamd.model.sandbox_links import present_links

KEY, OTHER = parse_key("sandbox", "eth0"), parse_key("other", "eth0")
ADDRESS, EGRESS = IPv4Address("10.0.0.7"), IPv6Address("fd00::7")
MAC = MacAddress("02:00:00:00:00:09")
BRANCH = Branch(7, MAC, IPV4.gateway, False)
ATTACHMENT = Attachment(
    key=KEY,
    address=ADDRESS,
    eni_id=EniId("eni-1"),
    route_table=254,
    host_veth=veth_name(KEY, prefix="eni"),
    netns="/run/netns/sandbox",
    netns_identity=NetnsIdentity(4, 1),
    fingerprint="",
    result=b"{}",
    created_at=datetime.now(UTC),
    other_address=EGRESS,
    uplink=BRANCH,
)
SECOND = egress_veth_name(KEY, prefix="eni")


def veth(name: str, **options: object) -> HostVeth:
    """A link of the host."""
    return HostVeth(name, 5, "", bool(options.pop("is_dying", False)), True, **options)  # type: ignore[arg-type]


def vlan(name: str, address: IPv4Address | None) -> VlanLink:
    """A link to a branch ENI."""
    return VlanLink(name, 6, 7, MAC, "", 3, False, True, address)


def survey(**links: object) -> KernelSurvey:
    """A whole survey that shows these links and nothing else."""
    return KernelSurvey(**({"veths": (), "routes": {}, "to_rules": frozenset(), "from_rules": {}} | links))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "seen",
    [
        survey(veths=(veth(ATTACHMENT.host_veth),)),
        survey(veths=(veth("eni-renamed", key=KEY),)),
        survey(veths=(veth(ATTACHMENT.host_veth, is_dying=True),)),
        survey(uplinked=(veth("vlan-host", key=KEY, has_uplink=True),)),
        survey(extra=(veth(SECOND, is_extra=True),)),
        survey(extra=(veth("renamed", key=KEY, is_extra=True),)),
        survey(vlans=(vlan(BRANCH.link, None),)),
        survey(vlans=(vlan("renamed", ADDRESS),)),
    ],
    ids=["veth", "veth by alias", "dying", "branch veth", "egress", "egress by alias", "vlan", "vlan by alias"],
)
def test_each_link_is_found(seen: KernelSurvey) -> None:
    """One link is enough."""
    assert len(present_links(ATTACHMENT, seen)) == 1


def test_links_of_others_do_not_count() -> None:
    """Another sandbox's links, of each kind."""
    others = survey(
        veths=(veth("eni-a", key=OTHER),),
        extra=(veth("eni-b", key=OTHER, is_extra=True),),
        vlans=(vlan("vlan.eth.9", IPv4Address("10.0.0.8")),),
    )
    assert present_links(ATTACHMENT, others) == frozenset()
