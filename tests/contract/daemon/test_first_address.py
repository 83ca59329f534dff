"""The first *ready* of a boot: not before the node can give an address, and every refusal until then is named when it comes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.rig import Rig, rig, wait_until

pytestmark = pytest.mark.privileged

DESCRIBE = "DescribeNetworkInterfaces"


def conflist(made: Rig) -> Path:
    """Where the node's runtime looks for it."""
    return Path(made.node.root + "/etc/cni/net.d/10-vpc-ipamd.conflist")


def status(made: Rig) -> dict[str, Any]:
    """What the daemon says, which must answer."""
    answer = made.status()
    assert answer is not None
    return answer


def refuse(made: Rig, api: str, code: str) -> None:
    """EC2 refuses every call of an API from now on."""
    made.lab.faults.apply({"apis": {api: {"error": {"code": code, "message": "told by the lab"}}}})


def assert_not_ready_because(made: Rig, *words: str) -> None:
    """Soon after the start: not ready, no conflist, the verdict names the cause, and the probe's exit status is 1."""
    wait_until(
        lambda: all(word in (made.status() or {"verdict": ""})["verdict"] for word in words),
        what=f"a verdict with {words}",
    )
    answer = status(made)
    assert not answer["ready"]
    assert answer["verdict"].startswith("NOT READY: ")
    assert len(answer["verdict"]) <= 120
    assert all(one["since"] and one["next"] and one["page"] for one in answer["conditions"])
    assert not conflist(made).exists()
    told = made.driver.ipamctl("status")
    assert (told.returncode, told.stdout.splitlines()[0].startswith("NOT READY: ")) == (1, True)


@pytest.mark.parametrize("code", ["UnauthorizedOperation", "RequestLimitExceeded"])
def test_a_refused_first_describe_keeps_the_node_unready_and_is_named(code: str) -> None:
    """Denied or throttled, and though one call is retried for many seconds: the status names API and code while it is retried."""
    with rig(start=False) as made:
        refuse(made, DESCRIBE, code)
        made.start(wait=False)
        assert_not_ready_because(made, DESCRIBE, code)
        assert status(made)["cloud"]["detail"] != "not asked yet"
        made.lab.faults.clear()
        made.wait_ready(60)
        assert conflist(made).exists()
        assert status(made)["verdict"].startswith("ready, with 1 condition: ")  # CRI is off here
        assert made.add("a").ok


def test_a_node_that_cannot_give_an_address_attracts_no_pods() -> None:
    """EC2 answers, the subnet is full and nothing is assignable: ADD is served, but not ready; an address ends that."""
    with rig(start=False) as made:
        (subnet,) = {eni.subnet_id for eni in made.lab.vpc.enis_of(made.node.instance_id)}
        made.lab.vpc.exhaust_subnet(subnet)
        made.start(wait=False)
        made.driver.wait_status(lambda answer: answer["phase"] == "serving", what="serving", timeout_s=120)
        assert_not_ready_because(made, "InsufficientFreeAddressesInSubnet")
        made.lab.vpc.restore_subnet(subnet)
        made.kill()  # the pool's pause of two minutes is not waited for: a start asks at once
        made.start()
        assert conflist(made).exists()


def test_an_empty_pool_is_a_condition_of_a_node_that_was_ready() -> None:
    """After the first *ready* an empty pool is said and changes nothing else, also across a restart; it ends with an address."""
    with rig(env={"WARM_IP_TARGET": "1", "IP_COOLDOWN_PERIOD": "1"}) as made:
        (subnet,) = {eni.subnet_id for eni in made.lab.vpc.enis_of(made.node.instance_id)}
        wait_until(lambda: status(made)["pool"]["assignable_count"] == 1, what="one address can be given")
        made.lab.vpc.exhaust_subnet(subnet)
        assert made.add("a").ok
        empty = "pool: no address is assignable: "
        refusal = "InsufficientFreeAddressesInSubnet"
        wait_until(
            lambda: any(said.startswith(empty) and refusal in said for said in status(made)["degraded"]), what="the condition"
        )
        assert status(made)["ready"]
        assert made.cni("STATUS", "", ifname="", netns="", version="1.1.0").ok
        verdict = status(made)["verdict"]
        assert re.match(rf"ready, with \d conditions: {empty}", verdict)
        assert verdict.count(refusal) == 1
        assert made.delete("a").ok
        wait_until(lambda: not any(said.startswith(empty) for said in status(made)["degraded"]), what="no condition")


def test_a_restart_in_the_same_boot_is_ready_with_an_empty_pool() -> None:
    """A restart changes no condition of the node: what was ready is ready again, though nothing can be given."""
    with rig(env={"WARM_IP_TARGET": "1", "IP_COOLDOWN_PERIOD": "60"}) as made:
        (subnet,) = {eni.subnet_id for eni in made.lab.vpc.enis_of(made.node.instance_id)}
        made.lab.vpc.exhaust_subnet(subnet)
        assert made.add("a").ok
        assert made.delete("a").ok
        assert status(made)["pool"]["assignable_count"] == 0
        made.restart()
        assert status(made)["pool"]["assignable_count"] == 0
        assert status(made)["ready"]
