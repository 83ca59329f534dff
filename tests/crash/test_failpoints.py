"""SIGKILL between every two effects, restart, audit: no address lost, none given twice, nothing leaked (I1-I9)."""

from __future__ import annotations

import importlib
import pkgutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import ipamd.datastore
import ipamd.eni
import ipamd.migration
import ipamd.policy
import ipamd.sandbox
from lab.lab import IPV6_CIDR, Lab
from lab.vpc.family import IPV4, IPV6, Family
from lab.vpc.state import Vpc
from tests.crash.scenarios import ELSEWHERE, IPV6_GROWTH, LIMITS, SCENARIOS, Scenario
from tests.rig import Rig, wait_until

KERNEL = {"kernel.create-veth", "kernel.name-host", "kernel.raise-eth0"}
"""One name per netlink batch of a wiring: the kernel takes a batch as a whole."""

WITH_EGRESS = sorted(
    {name for name in SCENARIOS if name.startswith(("attach.", "detach.", "cooling.", "adopt.", "restore.", "datastore."))}
    | KERNEL
)
"""Failpoints between whose effects a sandbox's second link comes or goes."""

EGRESS_CASES = [(IPV6, name) for name in WITH_EGRESS] + [
    (IPV4, name) for name in sorted({"attach.unwired", "cooling.swept", "restore.leftover-removed"} | KERNEL)
]
"""In IPv6 all, which has egress unless it is turned off; in IPv4, where all run without it, what the kernel does by the family."""

ALWAYS = [(IPV6, "attach.wired"), (IPV6, "cooling.swept"), (IPV6, "restore.veth-settled"), (IPV4, "kernel.name-host")]
"""The first link is there without the second, both are half gone, both are taken over, one netlink batch of two: `make test-all` has
the others, and every seed with egress (`tests/property/graph`) dies at some of them."""

FAILPOINT_COUNT = 63
"""Said once, so that a walk that finds too few fails instead of proving nothing."""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """One VPC with both families; every crash happens on a node of its own in it."""
    with Lab(
        name=f"crash-{time.monotonic_ns()}",
        nodes=[],
        hosts=["host-a"],
        instance_type="small",
        containerd=False,
        vpc=Vpc(ipv6_cidr=IPV6_CIDR, limits=LIMITS),
    ) as made:
        yield made


def has_died(made: Rig) -> bool:
    """The daemon is gone."""
    return made.daemon is not None and made.daemon.poll() is not None


@pytest.mark.privileged
@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_here_loses_doubles_and_leaves_nothing(lab: Lab, name: str) -> None:
    """The daemon dies by SIGKILL at the named point; after the next start rows, kernel and EC2 agree (I1-I9)."""
    die_at(lab, name, env=SCENARIOS[name].env)


@pytest.mark.privileged
@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "name"),
    [pytest.param(*one, marks=[] if one in ALWAYS else pytest.mark.heavy) for one in EGRESS_CASES],
    ids=lambda one: one if isinstance(one, str) else one.nft,
)
def test_a_crash_here_with_egress(lab: Lab, family: Family, name: str) -> None:
    """The same with a second link: it, its route and its address go or stay with the first (I1, I4, I5, I8)."""
    die_at(lab, name, env={**SCENARIOS[name].env, **family.settings, "ENABLE_V6_EGRESS": "true"}, node=f"{family.nft}-")


@pytest.mark.privileged
@pytest.mark.slow
@pytest.mark.parametrize("name", IPV6_GROWTH)
def test_a_crash_on_the_way_to_the_prefix(lab: Lab, name: str) -> None:
    """Where a node of IPv6 asks for its /80: after the next start it has one, and so says EC2 (I9)."""
    die_at(lab, name, env=IPV6.settings, node="prefix-", scenario=IPV6_GROWTH[name])


def die_at(lab: Lab, name: str, *, env: Mapping[str, str], node: str = "", scenario: Scenario | None = None) -> None:
    """Have a daemon die at a failpoint, and look at the node after the next start."""
    scenario = scenario or SCENARIOS[name]
    made = Rig(lab, lab.add_node(node + name.replace(".", "-")), env=env)
    armed = {"VPC_IPAMD_FAILPOINT": f"{name}:{scenario.count}"}
    if not scenario.needs_fresh_node:
        made.start(env=armed if scenario.is_only_provoked else None)
    scenario.prepare(made)
    if not scenario.is_only_provoked:
        if made.daemon is not None and not has_died(made):
            made.kill()
        made.start(wait=False, env=armed)
    wait_until(lambda: has_died(made) or bool((made.status() or {"ready": False})["ready"]), what="up or dead")
    if not has_died(made):
        scenario.provoke(made)
    wait_until(lambda: has_died(made), what=f"death at {name}")
    assert made.daemon is not None
    assert made.daemon.returncode == -signal.SIGKILL, made.log_tail()
    try:
        made.start()
        scenario.after(made)
        made.assert_sound()
        if made.driver.egress is not None:
            assert made.add("other").ok
            made.node.run(["ip", "-n", "other", "link", "show", made.driver.egress.egress_link])
        for left in list(made.attachments()):
            assert made.cni("DEL", left).ok
        made.assert_sound(expected=0)
    except BaseException:
        sys.stderr.write(f"--- the daemon's log\n{made.log_tail(60)}\n")
        raise
    finally:
        made.kill()


def test_every_failpoint_is_covered() -> None:
    """A failpoint that no test dies at proves nothing."""
    declared = set(KERNEL)
    for package in (ipamd.sandbox, ipamd.policy, ipamd.eni, ipamd.migration, ipamd.datastore):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):  # rooms within rooms too
            declared |= set(getattr(importlib.import_module(found.name), "FAILPOINTS", ()))
    assert len(declared) == FAILPOINT_COUNT
    covered = set(SCENARIOS) | set(ELSEWHERE)
    assert declared == covered
    root = Path(__file__).parents[2]
    for name, path in ELSEWHERE.items():
        assert f'"{name}"' in (root / path).read_text(), f"{path} does not mention {name}"
