"""The lab's side of `vpc-lab hand`: each action by lab/vpc/hands.py, and one sentence that says what was done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING, Any

from lab.errors import LabError

if TYPE_CHECKING:
    from lab.lab import Lab  # at run time its imports (gRPC, the servers) are for the lab process alone


def act(lab: Lab, *, action: str, target: str, **options: Any) -> dict[str, Any]:
    """Do it in the lab. Raises: LabError with EC2's refusal, or about a target that is not one."""
    from lab.vpc.errors import Ec2Error

    try:
        return {"done": ACTIONS[action](lab, target, options)}
    except (Ec2Error, ValueError) as exc:
        raise LabError(f"{action} {target}: {exc}") from exc


def _detach(lab: Lab, target: str, options: Mapping[str, Any]) -> str:
    eni = lab.vpc.hands.detach(target, force=options["force"])
    return f"{eni.eni_id} is being detached, with {len(eni.secondary_addresses)} addresses and {len(eni.prefixes)} prefixes"


def _delete(lab: Lab, target: str, _: Mapping[str, Any]) -> str:
    return f"{lab.vpc.hands.delete(target).eni_id} was deleted"


def _unassign(lab: Lab, target: str, _: Mapping[str, Any]) -> str:
    what = IPv4Network(target) if "/" in target else IPv4Address(target)
    return f"{target} was taken from {lab.vpc.hands.unassign(what).eni_id}"


def _assign(lab: Lab, target: str, options: Mapping[str, Any]) -> str:
    address = IPv4Address(options["address"]) if options["address"] else None
    before = lab.vpc.world.eni(target)
    after = lab.vpc.hands.assign(target, address=address, prefix_count=options["prefixes"])
    new = {*after.secondary_addresses, *after.prefixes} - {*before.secondary_addresses, *before.prefixes}
    return f"{target} was given {', '.join(map(str, new))}"


def _attach(lab: Lab, target: str, options: Mapping[str, Any]) -> str:
    from lab.vpc.hands import NO_MANAGE
    from lab.vpc.world import KEPT_S

    if target.startswith("eni-"):
        before = [change.before for change in lab.vpc.changes() if change.eni_id == target and change.before is not None]
        was_on = [eni.attachment.instance_id for eni in before if eni.attachment is not None]
        if not was_on:
            raise LabError(f"{target} was on no node in the last {KEPT_S:.0f} s")
        lab.vpc.hands.attach_existing(target, was_on[-1])
        return f"{target} is being attached to {lab.vpc.instance(was_on[-1]).name} again"
    tags = NO_MANAGE if options["no_manage"] else {}
    instance_id = lab.node(target).instance_id
    eni = lab.vpc.hands.attach(instance_id, kind=options["type"], tags=tags, address_count=options["addresses"])
    return f"{eni.eni_id} ({options['type']}) is being attached to {target}"


def _announce(lab: Lab, target: str, options: Mapping[str, Any]) -> str:
    at = (lab.vpc.wall_clock() + timedelta(minutes=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
    what = options["notice"]
    lab.vpc.hands.announce(
        lab.node(target).instance_id,
        interruption_at=at if what == "interruption" else "",
        rebalance_at=at if what == "rebalance" else "",
    )
    return f"metadata of {target} announces {what} from now on"


def _groups(lab: Lab, target: str, _: Mapping[str, Any]) -> str:
    group = lab.vpc.add_security_group("made by hand")
    return f"{lab.vpc.hands.change_groups(target, (group,)).eni_id} has {group} as its only security group"


def _volumes(lab: Lab, target: str, options: Mapping[str, Any]) -> str:
    lab.vpc.attach_volumes(lab.node(target).name, options["count"])
    return f"{target} has {options['count']} volumes"


ACTIONS: Mapping[str, Callable[[Lab, str, Mapping[str, Any]], str]] = {
    "announce": _announce,
    "assign": _assign,
    "attach": _attach,
    "delete": _delete,
    "detach": _detach,
    "groups": _groups,
    "unassign": _unassign,
    "volumes": _volumes,
}
