"""Operations on EC2 that one version of the code breaks off and another finishes: run as a process with its folder on the path.

    python operations_life.py give DIRECTORY
    python operations_life.py take DIRECTORY

`give` makes a node of fakes for each case, kills it at the case's failpoint, and leaves the datastore and EC2's state in a folder of
the case's name. `take` starts a node from each such folder and lets its pool run until all has settled. Both print what there is then
as JSON, by case. Names only what every version has.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict, fields
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import ipamd
from ipamd.model.cloud import DescribedEni
from ipamd.model.errors import CloudError, EniLimitError
from tests.fakes.cloud import SUBNET_CIDR, FakeEc2
from tests.fakes.node import FakeNode

try:
    from ipamd.model.pool_settings import PoolSettings
except ImportError:
    from ipamd.model.pool import PoolSettings  # type: ignore[attr-defined,no-redef,unused-ignore]  # level 8

NONE = {"warm_eni_target": 0, "warm_ip_target": 1}
LITTLE = {**NONE, "minimum_ip_target": 5}
FULL = {**NONE, "minimum_ip_target": 9}
"""All that the primary ENI of an m5.large has room for."""

MORE = {**NONE, "minimum_ip_target": 15}
PREFIX = {"prefix_delegation": True, "warm_eni_target": 0}

CREATION = ("intent-opened", "created", "named", "attach-asked", "attached", "stored", "host-ready")
RELEASE = ("intent-opened", "detached", "deleted", "torn-down", "stored")

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    # case -> targets that are met first, targets from then on, where it is killed
    "assign, not yet asked": (LITTLE, FULL, "growth.intent-opened"),
    "assign, done": (LITTLE, FULL, "growth.allocated"),
    "assign prefixes, not yet asked": (
        {**PREFIX, "minimum_ip_target": 10},
        {**PREFIX, "minimum_ip_target": 30},
        "growth.intent-opened",
    ),
    "assign prefixes, done": ({**PREFIX, "minimum_ip_target": 10}, {**PREFIX, "minimum_ip_target": 30}, "growth.allocated"),
    **{f"create, {point}": (FULL, MORE, f"growth.{point}") for point in CREATION},
    "create, the answer lost": (FULL, MORE, "create_eni"),
    "cannot be attached, deleted": (FULL, MORE, "growth.deleted"),
    "cannot be marked, detached": (FULL, MORE, "growth.detached"),
    **{f"unassign, {point}": (FULL, LITTLE, f"release.{point}") for point in ("intent-opened", "unassigned", "stored")},
    **{
        f"unassign prefixes, {point}": (
            {**PREFIX, "minimum_ip_target": 30},
            {**PREFIX, "minimum_ip_target": 10},
            f"release.{point}",
        )
        for point in ("intent-opened", "unassigned", "stored")
    },
    **{f"release an ENI, {point}": (MORE, FULL, f"release.{point}") for point in RELEASE},
    "leaked, deleted": (FULL, MORE, "leaked.deleted"),
}


class Killed(BaseException):
    """What a failpoint raises: no part of the daemon sees it as an error."""


def give(directory: Path, case: str) -> dict[str, Any]:
    """Bring a node to the first targets, give it the others, and kill it."""
    first, then, point = CASES[case]
    place = directory / case
    (place / "life").mkdir(parents=True)
    node = FakeNode(place / "life", settings=PoolSettings(**first))
    node.bring_up()
    run(node, 120)
    if point == "leaked.deleted":
        forget_a_new_eni(node, then)
    if case.startswith("cannot be attached"):
        node.ec2.fail["attach_eni"] = [EniLimitError("no further ENI", details="AttachmentLimitExceeded")]
    if case.startswith("cannot be marked"):
        node.ec2.fail["set_delete_on_termination"] = [refused("not now")]
    node.pool.set_limits(node.ec2.limits, settings=PoolSettings(**then, release_hold_s=5.0))
    die_at(node, point)
    for path in node.run_dir.glob("state.db*"):
        shutil.copy2(path, place)
    cloud = {"enis": list(map(asdict, node.ec2.enis.values())), "tokens": node.ec2._tokens, "at_s": node.clock.monotonic()}
    (place / "cloud.json").write_text(json.dumps(cloud, default=lambda one: sorted(map(str, one)) if is_set(one) else str(one)))
    told = tell(node)
    node.datastore.close()
    return told


def die_at(node: FakeNode, point: str) -> None:
    """Let the pool run until it reaches a failpoint, or until EC2 has done a call of which the process never hears."""

    def reached(name: str) -> None:
        if name == point:
            raise Killed

    node.failpoint = reached
    node.ec2.lose[point] = [Killed()]  # type: ignore[list-item]
    try:
        run(node, 1200)
    except Killed:
        return
    raise AssertionError(f"{point} was not reached")


def refused(why: str) -> CloudError:
    """EC2's answer that it did nothing."""
    error = CloudError(why, details="InvalidParameterValue")
    error.may_have_happened = False
    return error


def forget_a_new_eni(node: FakeNode, targets: dict[str, Any]) -> None:
    """Make an ENI whose intent is lost with the datastore, and start again without need of it."""
    node.pool.set_limits(node.ec2.limits, settings=PoolSettings(**targets))
    die_at(node, "growth.created")
    node.crash(keep_datastore=False)
    node.settings = PoolSettings(**FULL)
    node.bring_up()


def take(directory: Path, case: str) -> dict[str, Any]:
    """Go on from what the giver left, until nothing is under way any more."""
    place = directory / case
    cloud = json.loads((place / "cloud.json").read_text())
    ec2 = FakeEc2()
    ec2.enis = {one["eni_id"]: eni(one) for one in cloud["enis"]}
    ec2._tokens = cloud["tokens"]
    ec2._fresh = (SUBNET_CIDR.network_address + number for number in range(1000, 2000))
    ec2._fresh_prefixes = (one for one in SUBNET_CIDR.subnets(new_prefix=28) if one.network_address >= IPv4Address("10.0.12.0"))
    (place / "unused").mkdir()
    node = FakeNode(place / "unused", settings=PoolSettings(**CASES[case][1], release_hold_s=5.0), ec2=ec2)
    node.datastore.close()
    node.clock.advance(cloud["at_s"] + 2 - node.clock.monotonic())
    node.run_dir, node.has_run_before = place, True
    node.start()
    began = tell(node)
    node.bring_up()
    run(node, 1200)
    told = tell(node) | {"outcome": str(node.opened.report.outcome), "began": began["intents"], "calls": dict(ec2.calls)}
    node.datastore.close()
    return told


def run(node: FakeNode, seconds: int) -> None:
    """Let the pool's loop run."""
    for _ in range(0, seconds, 5):
        node.clock.advance(5)
        node.pool.run_once()


def tell(node: FakeNode) -> dict[str, Any]:
    """What is recorded, what EC2 has, and what is under way."""
    enis = list(node.ec2.enis.values())
    at_ec2 = {address for one in enis for address in one.secondary_addresses}
    at_ec2 |= {address for one in enis for prefix in one.prefixes for address in prefix}
    return {
        "intents": {one.intent_id: [str(one.kind), dict(one.payload)] for one in node.datastore.open_intents()},
        "audit": node.datastore.audit(),
        "recorded_enis": sorted(one.eni_id for one in node.datastore.enis()),
        "enis": {one.eni_id: [one.attachment_status, one.delete_on_termination] for one in enis},
        "unrecorded": sorted(map(str, at_ec2 - {row.address for row in node.datastore.addresses()})),
        "not_at_ec2": sorted(str(row.address) for row in node.datastore.addresses() if row.address not in at_ec2),
        "free_count": node.datastore.counts().free,
    }


def eni(told: dict[str, Any]) -> DescribedEni:
    """Read an ENI of the other version: what this one does not know is left out."""
    known = {field.name for field in fields(DescribedEni)}
    value = {name: one for name, one in told.items() if name in known}
    value |= {
        "primary_address": IPv4Address(told["primary_address"]),
        "secondary_addresses": frozenset(map(IPv4Address, told["secondary_addresses"])),
        "prefixes": frozenset(map(IPv4Network, told["prefixes"])),
        "security_group_ids": tuple(told["security_group_ids"]),
    }
    if "connection_tracking" in value:
        value["connection_tracking"] = tuple(map(tuple, value["connection_tracking"]))
    return DescribedEni(**value)


def is_set(value: object) -> bool:
    """Whether it has no order of its own."""
    return isinstance(value, (set, frozenset))


if __name__ == "__main__":
    act = {"give": give, "take": take}[sys.argv[1]]
    told = {case: act(Path(sys.argv[2]), case) for case in CASES}
    sys.stdout.write(json.dumps({"folder": str(Path(ipamd.__file__).parents[1]), "cases": told}))
