"""A daemon that starts with other settings than the one before it: sandboxes of both live, and end, side by side."""

from __future__ import annotations

import hashlib

import pytest

from lab.vpc.family import Family
from tests.families import EACH_FAMILY_HEAVY_IPV6
from tests.rig import Rig, rig

pytestmark = pytest.mark.privileged


def pings(made: Rig, *addresses: object) -> None:
    """Every address answers an outside host."""
    answered = made.lab.ping(source="host-a", targets=list(addresses))  # type: ignore[arg-type]  # addresses of results
    assert all(answered.values()), answered


def host_veth(reply_body: dict[str, object] | None) -> str:
    """The host veth that an ADD's result names."""
    assert reply_body is not None
    interfaces = reply_body["interfaces"]
    assert isinstance(interfaces, list)
    return str(interfaces[0]["name"])


@EACH_FAMILY_HEAVY_IPV6
def test_prefix_mark_mtu_and_snat(family: Family) -> None:
    """Pods of before answer, take CHECK and DEL; new ones have the new prefix and MTU."""
    with rig(family=family) as made:
        old = [made.add(f"old-{number}") for number in range(2)]
        made.restart(
            env=made.env
            | {
                "AWS_VPC_K8S_CNI_VETHPREFIX": "pod",
                "AWS_VPC_K8S_CNI_CONNMARK": "0x20",
                "POD_MTU": "1400",
                "AWS_VPC_K8S_CNI_EXTERNALSNAT": "true",
            }
        )
        new = made.add("new-0")
        assert host_veth(old[0].body).startswith("eni")
        assert host_veth(new.body).startswith("pod")
        assert [made.cni("ADD", "old-0").any_address, made.cni("ADD", "new-0").any_address] == [
            old[0].any_address,
            new.any_address,
        ]
        pings(made, *(reply.any_address for reply in (*old, new)))
        assert made.cni("CHECK", "old-0", conf={"prevResult": old[0].body}).body is None
        assert made.cni("CHECK", "new-0", conf={"prevResult": new.body}).body is None
        for name in ("old-0", "old-1", "new-0"):
            assert made.delete(name).ok
        made.assert_sound(expected=0)


def test_a_mark_changes_while_ec2_is_silent() -> None:
    """The node is set up by its new settings before EC2 is asked: the first CHECK finds no damage, and nothing is called a repair."""
    with rig() as made:
        old = made.add("old-0")
        made.lab.faults.apply({"apis": {"DescribeNetworkInterfaces": {"hang": True}}})
        made.restart(env=made.env | {"AWS_VPC_K8S_CNI_CONNMARK": "0x20"})
        assert made.cni("CHECK", "old-0", conf={"prevResult": old.body}).body is None
        assert made.add("new-0").ok
        assert "fwmark 0x20" not in made.log_tail(200), "a pass had to repair it"
        made.lab.faults.clear()
        made.assert_sound(expected=2)


@EACH_FAMILY_HEAVY_IPV6
def test_names_by_pod(family: Family) -> None:
    """New sandboxes have the name that policy agents compute, and a daemon without the setting serves them as well."""
    with rig(family=family) as made:
        before = made.add("web-0")
        made.restart(env=made.env | {"VPC_IPAMD_POD_VETH_NAMES": "true"})
        after = made.add("web-1")
        assert host_veth(after.body) == "eni" + hashlib.sha1(b"default.web-1").hexdigest()[:11]
        pings(made, before.any_address, after.any_address)
        assert made.delete("web-1").ok
        again = made.add("web-1x")
        made.restart(env=made.env)
        pings(made, before.any_address, again.any_address)
        made.assert_sound(expected=2)
        for name in ("web-0", "web-1x"):
            assert made.delete(name).ok
        made.assert_sound(expected=0)
