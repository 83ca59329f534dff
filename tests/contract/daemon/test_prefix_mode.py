"""Prefix mode with the real daemon, EC2 over HTTP and packets: a switch of the mode under pods, and a fragmented subnet."""

from __future__ import annotations

import pytest

from tests.rig import CniReply, Rig, rig, wait_until

pytestmark = pytest.mark.privileged

SINGLES = {"WARM_IP_TARGET": "2"}
MORE_SINGLES = {"ENABLE_PREFIX_DELEGATION": "false", "WARM_IP_TARGET": "32", "VPC_IPAMD_MAX_PODS": "110"}
PREFIXES = {"ENABLE_PREFIX_DELEGATION": "true", "WARM_PREFIX_TARGET": "1"}


def held(made: Rig) -> tuple[int, int]:
    """Single addresses and /28s on this node's ENIs, as EC2 has them."""
    enis = made.lab.vpc.enis_of(made.node.instance_id)
    return sum(len(eni.secondary_addresses) for eni in enis), sum(len(eni.prefixes) for eni in enis)


def in_prefix(made: Rig, reply: CniReply) -> bool:
    """Whether a sandbox's address is one of a /28."""
    prefixes = [prefix for eni in made.lab.vpc.enis_of(made.node.instance_id) for prefix in eni.prefixes]
    return any(reply.address in prefix for prefix in prefixes)


def answers(made: Rig, replies: dict[str, CniReply]) -> None:
    """Every sandbox still has its address for the plugin, and an outside host reaches it."""
    assert {name: made.cni("ADD", name).address for name in replies} == {name: one.address for name, one in replies.items()}
    answered = made.lab.ping(source="host-a", targets=[reply.address for reply in replies.values()])
    assert all(answered.values()), answered


@pytest.mark.parametrize("to_prefixes", [True, False])
def test_the_mode_is_switched_under_pods(to_prefixes: bool) -> None:
    """Both ways by a restart: pods keep their addresses, new ones get those of the new mode, and both end."""
    before, after = (SINGLES, PREFIXES | {"WARM_IP_TARGET": "0"}) if to_prefixes else (PREFIXES, MORE_SINGLES)
    with rig(env=before) as made:
        pods = {name: made.add(name) for name in ("old-0", "old-1")}
        assert [in_prefix(made, reply) for reply in pods.values()] == [not to_prefixes] * 2
        made.restart(env=made.env | after)
        wait_until(
            lambda: all(held(made)) and made.pool()["total_count"] == len(made.ec2_addresses()),
            what="the pool has grown in the mode that is on now, and recorded it",
        )
        pods["new-0"] = made.add("new-0")
        assert in_prefix(made, pods["new-0"]) is to_prefixes
        answers(made, pods)
        made.assert_sound(expected=3)
        for name in pods:
            assert made.delete(name).ok
        made.assert_sound(expected=0)


@pytest.mark.parametrize("code", ["InsufficientCidrBlocks", "InvalidParameterValue"])
def test_a_fragmented_subnet_and_its_end(code: str) -> None:
    """No /28 is to be had, by either code: pods get single addresses. Once there is one, new pods get its addresses beside them."""
    with rig(env=PREFIXES, start=False) as made:
        subnet_id = made.lab.vpc.enis_of(made.node.instance_id)[0].subnet_id
        made.lab.vpc.faults.apply({"rules": {"prefix_refusal": code}})
        made.lab.vpc.fragment_subnet(subnet_id)
        made.start()
        pods = {name: made.add(name) for name in ("pod-0", "pod-1")}
        singles, prefixes = held(made)
        assert (singles > 1, prefixes) == (True, 0)
        made.lab.vpc.restore_subnet(subnet_id)
        made.restart()  # a new process asks at once; a running one after a pause of minutes
        wait_until(lambda: int(made.pool()["free_count"]) >= 16, what="a /28 is there, and recorded")
        pods["pod-2"] = made.add("pod-2")
        assert [in_prefix(made, reply) for reply in pods.values()] == [False, False, True]
        answers(made, pods)
        made.assert_sound(expected=3)
        for name in pods:
            assert made.delete(name).ok
        made.assert_sound(expected=0)
