"""Other hands at a node's ENIs, and metadata that is frozen or incomplete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from test_lab_imds import META, TOKEN, Metadata

from lab.errors import LabError
from lab.imds import ImdsServer
from lab.vpc.errors import Ec2Error
from lab.vpc.hands import NO_MANAGE
from tests.errors import refused_by_lab


@pytest.fixture
def imds(cloud: Any) -> Iterator[Metadata]:
    """Return a client of the node's metadata."""
    with ImdsServer(cloud.vpc, cloud.node.instance_id, socket=("127.0.0.1", 0)) as server:
        yield Metadata(server)


def attached(cloud: Any, **params: Any) -> str:
    """An ENI that the node attached."""
    eni_id = cloud.create(**params)
    cloud.attach(eni_id)
    cloud.advance(2)
    return str(eni_id)


def test_detach_by_hand(cloud: Any) -> None:
    """It takes the time that a detachment takes, or none by force, and is no call of a node."""
    eni_id = attached(cloud)
    cloud.vpc.clear_calls()
    cloud.vpc.hands.detach(eni_id)
    assert cloud.vpc.world.eni(eni_id).attachment is not None
    cloud.advance(3)
    assert cloud.vpc.world.eni(eni_id).attachment is None
    cloud.vpc.hands.attach_existing(eni_id, cloud.node.instance_id)
    cloud.advance(2)
    cloud.vpc.hands.detach(eni_id, force=True)
    assert cloud.vpc.world.eni(eni_id).attachment is None
    assert cloud.vpc.calls() == []
    with pytest.raises(LabError, match="attached to nothing"):
        cloud.vpc.hands.detach(eni_id)
    with pytest.raises(Ec2Error, check=refused_by_lab("OperationNotPermitted")):
        cloud.vpc.hands.detach(cloud.primary().eni_id)


def test_unassign_by_hand(cloud: Any) -> None:
    """An address goes alone; one within a prefix takes the prefix with it; one of nobody is refused."""
    eni_id = attached(cloud, SecondaryPrivateIpAddressCount=2)
    first, second = cloud.vpc.world.eni(eni_id).secondary_addresses
    assert cloud.vpc.hands.unassign(first).eni_id == eni_id
    assert cloud.vpc.world.eni(eni_id).secondary_addresses == (second,)
    cloud.vpc.hands.assign(eni_id, prefix_count=1)
    prefix = cloud.vpc.world.eni(eni_id).prefixes[0]
    cloud.vpc.hands.unassign(prefix[3])
    assert cloud.vpc.world.eni(eni_id).prefixes == ()
    with pytest.raises(Ec2Error, check=refused_by_lab("InvalidNetworkInterfaceID.NotFound")):
        cloud.vpc.hands.unassign(first)


def test_an_address_is_given_by_hand(cloud: Any) -> None:
    """A new one, or one that another ENI has: it moves."""
    one, other = attached(cloud, SecondaryPrivateIpAddressCount=1), cloud.create()
    assert len(cloud.vpc.hands.assign(one).secondary_addresses) == 2
    moved = cloud.vpc.world.eni(one).secondary_addresses[0]
    cloud.vpc.hands.assign(other, address=moved)
    assert cloud.vpc.owner_of(moved) == other
    assert moved not in cloud.vpc.world.eni(one).addresses


def test_delete_by_hand(cloud: Any) -> None:
    """Also while it is attached."""
    eni_id = attached(cloud)
    cloud.vpc.hands.delete(eni_id)
    assert eni_id not in cloud.vpc.world.enis


def test_foreign_enis(cloud: Any) -> None:
    """A plain one takes the lowest free index; its tags are those of its maker."""
    eni = cloud.vpc.hands.attach(cloud.node.instance_id, tags=NO_MANAGE, address_count=2)
    cloud.advance(2)
    shown = cloud.show(eni.eni_id)
    assert (shown["Attachment"]["DeviceIndex"], shown["Attachment"]["Status"]) == (1, "attached")
    assert {tag["Key"]: tag["Value"] for tag in shown["TagSet"]} == NO_MANAGE
    assert len(shown["PrivateIpAddresses"]) == 3


@pytest.mark.parametrize("kind", ["efa", "efa-only", "trunk", "branch", "ipv6-only"])
def test_enis_of_other_kinds(cloud: Any, imds: Metadata, kind: str) -> None:
    """As Describe and metadata show them: EFA-only without any address, IPv6-only without IPv4, a branch unattached."""
    eni = cloud.vpc.hands.attach(cloud.node.instance_id, kind=kind)
    cloud.advance(2)
    shown = cloud.show(eni.eni_id)
    has_ipv4 = kind not in ("efa-only", "ipv6-only")
    assert shown["InterfaceType"] == ("interface" if kind == "ipv6-only" else kind)
    assert ("PrivateIpAddress" in shown, bool(shown["PrivateIpAddresses"])) == (has_ipv4, has_ipv4)
    assert bool(shown["Ipv6Addresses"]) == (kind == "ipv6-only")
    assert (shown["Status"], "Attachment" in shown) == ("in-use", kind != "branch")
    assert (f"{eni.mac}/" in imds.get("network/interfaces/macs")) == (kind != "branch")
    status = imds.status(f"network/interfaces/macs/{eni.mac}/local-ipv4s")
    assert status == (200 if has_ipv4 and kind != "branch" else 404)


def test_groups_and_tags_are_changed_by_hand(cloud: Any) -> None:
    """Of the primary ENI too."""
    group = cloud.vpc.add_security_group("other")
    eni_id = cloud.primary().eni_id
    assert cloud.vpc.hands.change_groups(eni_id, (group,)).security_groups == (group,)
    assert cloud.vpc.hands.tag(eni_id, {"a": "b"}).tags == {"a": "b"}


def test_a_hand_is_shown_with_the_same_lag(cloud: Any) -> None:
    """Describe knows no difference between hands."""
    eni_id = attached(cloud, SecondaryPrivateIpAddressCount=1)
    cloud.vpc.faults.apply({"describe": {"stale_s": {"UnassignPrivateIpAddresses": 5}}})
    cloud.vpc.hands.unassign(cloud.vpc.world.eni(eni_id).secondary_addresses[0])
    assert len(cloud.show(eni_id)["PrivateIpAddresses"]) == 2
    cloud.advance(5)
    assert len(cloud.show(eni_id)["PrivateIpAddresses"]) == 1


def test_frozen_metadata(cloud: Any, imds: Metadata) -> None:
    """It shows the moment of the fault, however long that was ago, and the present once it is taken back; EC2 is not frozen."""
    eni_id = attached(cloud)
    cloud.vpc.faults.apply({"apis": {"imds": {"frozen": True}}})
    path = f"network/interfaces/macs/{cloud.vpc.world.eni(eni_id).mac}/local-ipv4s"
    before = imds.get(path)
    cloud.vpc.hands.assign(eni_id)
    cloud.advance(10_000)
    imds.token = imds.ask("PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"})[1]
    cloud.vpc.faults.apply({"unseen": {}})
    assert imds.get(path) == before
    assert len(cloud.show(eni_id)["PrivateIpAddresses"]) == 2
    cloud.vpc.faults.apply({"apis": {"imds": None}})
    assert len(imds.get(path).split()) == 2


def test_absent_categories(cloud: Any, imds: Metadata) -> None:
    """Their paths are 404 and in no listing; the others stay."""
    cloud.vpc.faults.apply({"apis": {"imds": {"absent": ["local-ipv4s", "placement"]}}})
    base = f"network/interfaces/macs/{cloud.primary().mac}/"
    assert (imds.status(base + "local-ipv4s"), imds.status("placement/region")) == (404, 404)
    assert "local-ipv4s" not in imds.get(base)
    assert imds.get(base + "interface-id") == cloud.primary().eni_id
    assert imds.ask("GET", META + "placement", {TOKEN: imds.token})[0] == 404
