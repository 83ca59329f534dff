"""What the nemesis draws of a cloud that lies or refuses, and of other hands. Pure: dice in, fault specs and arguments out.

Lies last longer than other faults: what takes two looks to believe must be told for longer than two looks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

HANDS: Mapping[str, float] = {
    "detach-used": 1,
    "detach-idle": 1,
    "delete": 0.5,
    "unassign-used": 2,
    "unassign-free": 2,
    "move": 1,
    "give": 2,
    "give-prefix": 0.5,
    "attach": 0.7,
    "groups": 0.5,
}
"""Weights. Ours: addresses are taken more often than ENIs, of which a node has few; foreign ENIs stay and so must be few."""

IPV6_HANDS: Mapping[str, float] = {
    "unassign-used": 0.2,
    "unassign-free": 1,
    "give": 2,
    "give-prefix": 1,
    "attach": 0.7,
    "groups": 0.5,
}
"""The same on a node with IPv6, which makes no ENI. With its /80 it loses all, and an EC2 that lacks all is believed after ten minutes
(lab/chaos/book.py), so that is rare."""

FOREIGN = ("interface", "efa", "efa-only", "trunk", "branch", "ipv6-only")
LIE_S = (5.0, 45.0)
"""Seconds. Ours: from less than the daemon's two looks (30 s apart) to more."""

STALE_CAUSES = ("AssignPrivateIpAddresses", "UnassignPrivateIpAddresses", "DetachNetworkInterface", "DeleteNetworkInterface")
CONDITIONS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("CreateNetworkInterface", {"aws:RequestTag/team": "network"}),
    ("CreateTags", {"aws:TagKeys": ["team"]}),
    ("DeleteNetworkInterface", {"aws:ResourceTag/team": "network"}),
    ("AssignPrivateIpAddresses", {}),
)
ACTIONS = (
    "AssignPrivateIpAddresses",
    "AttachNetworkInterface",
    "CreateNetworkInterface",
    "DeleteNetworkInterface",
    "DescribeNetworkInterfaces",
    "DetachNetworkInterface",
    "ModifyNetworkInterfaceAttribute",
    "UnassignPrivateIpAddresses",
)
SLOTS = 64
"""Attachment slots of the runs' instance type, ENIs and volumes together (lab/chaos/player.py)."""


def other_hands(rng: Random, weights: Mapping[str, float] = HANDS) -> dict[str, Any]:
    """Draw one deed: what, a number to pick its object with, and of which kind a foreign ENI is."""
    what = rng.choices(list(weights), list(weights.values()))[0]
    return {"what": what, "pick": round(rng.random(), 4), "type": rng.choice(FOREIGN), "tagged": rng.random() < 0.5}


def standing_conditions(rng: Random) -> dict[str, Any]:
    """Draw what is so during a whole run: how EC2 plays what is unknown, how a list must be asked for, how new IDs are known."""
    cloud: dict[str, Any] = {
        "rules": {
            "token_of_deleted": rng.choice(("dead-eni", "new-eni")),
            "token_check": rng.choice(("first", "after-capacity")),
            "prefix_refusal": rng.choice(("by-cause", "InsufficientCidrBlocks", "InvalidParameterValue")),
            "in_use": rng.choice(("by-call", "InvalidParameterValue", "InvalidNetworkInterface.InUse")),
            "assign_answer": rng.choice(("new", "all")),
        },
        "unseen": {"AttachNetworkInterface": rng.randint(0, 2), "DescribeNetworkInterfaces": rng.randint(0, 1)},
    }
    if rng.random() < 1 / 2:
        cloud["large_account"] = {"page_size": rng.randint(5, 20), "sparse": rng.random() < 0.5}
    # Drawn last, so that the plans of older seeds stay what they were.
    cloud["rules"]["attach_check"] = rng.choice(("eni-first", "place-first"))
    return cloud


def _section(name: str, spec: object) -> dict[str, Any]:
    return {"apply": {name: spec}, "undo": {name: None}}


def _partial(rng: Random) -> dict[str, Any]:
    what = rng.choice(("enis", "addresses"))
    return _section("describe", {"omit": {what: round(rng.uniform(0.2, 0.8), 2), "steady": rng.random() < 0.5}})


def _late(rng: Random) -> dict[str, Any]:
    return _section("describe", {"late_addresses_s": round(rng.uniform(2, 20), 1), "late_primary": rng.random() < 0.5})


def _stale(rng: Random) -> dict[str, Any]:
    causes = rng.sample(STALE_CAUSES, rng.randint(1, 2))
    return _section("describe", {"stale_s": {cause: round(rng.uniform(3, 60), 1) for cause in causes}})


def _condition(rng: Random) -> dict[str, Any]:
    action, unless = rng.choice(CONDITIONS)
    return _section("iam", [{"action": action, **({"unless": dict(unless)} if unless else {})}])


def _denied(rng: Random) -> dict[str, Any]:
    return _section("iam", [{"action": action} for action in rng.sample(ACTIONS, rng.randint(1, 2))])


def _hang(rng: Random) -> dict[str, Any]:
    api = rng.choice(ACTIONS)
    return {"apply": {"apis": {api: {"hang": True}}}, "undo": {"apis": {api: None}}}


def _imds_error(rng: Random) -> dict[str, Any]:
    status = rng.choice((429, 500, 503))
    return _metadata({"error": {"code": "InternalError", "status": status, "rate": round(rng.uniform(0.3, 1), 2)}})


def _metadata(fault: Mapping[str, Any]) -> dict[str, Any]:
    return {"apply": {"apis": {"imds": dict(fault)}}, "undo": {"apis": {"imds": None}}}


LIES: Mapping[str, Callable[[Random], dict[str, Any]]] = {
    "account-limits": lambda rng: _section("account_limits", {"scale": round(rng.uniform(0.01, 0.1), 3)}),
    "describe-empty": lambda _: _section("describe", {"omit": {"everything": True}}),
    "describe-headless": lambda _: _section("describe", {"omit": {"primary": True}}),
    "describe-late-addresses": _late,
    "describe-partial": _partial,
    "describe-stale": _stale,
    "ec2-hang": _hang,
    "iam-condition": _condition,
    "iam-denied": _denied,
    "imds-absent": lambda rng: _metadata({"absent": [rng.choice(("local-ipv4s", "ipv4-prefix", "network-card"))]}),
    "imds-error": _imds_error,
    "imds-frozen": lambda _: _metadata({"frozen": True}),
    "interface-quota": lambda rng: _section("interface_quota", rng.randint(2, 8)),
    "subnet-fragmented": lambda _: _section("subnets", {"*": {"fragmented": True}}),
    "subnet-nearly-full": lambda rng: _section("subnets", {"*": {"leave": rng.randint(0, 6)}}),
    "volumes": lambda rng: _section("volumes", {"*": rng.randint(SLOTS - 8, SLOTS - 1)}),
}

IPV6_LIES: Mapping[str, Callable[[Random], dict[str, Any]]] = {
    "describe-stale-ipv6": lambda rng: _section("describe", {"stale_s": {"AssignIpv6Addresses": round(rng.uniform(3, 60), 1)}}),
    "iam-denied-ipv6": lambda _: _section("iam", [{"action": "AssignIpv6Addresses"}]),
    "subnet-without-80s": lambda _: _section("subnets", {"*": {"without_ipv6_prefixes": True}}),
}
"""What a node with IPv6 meets besides; AmazonEKS_CNI_Policy lacks that action."""

DENIALS = frozenset({"iam-condition", "iam-denied", "iam-denied-ipv6"})
"""Those that a person mends, who then runs `ipamctl retry`: what is denied is asked for after ten minutes and later by itself."""

DESCRIBE_LIES = frozenset(
    {
        "describe-empty",
        "describe-headless",
        "describe-late-addresses",
        "describe-partial",
        "describe-stale",
        "describe-stale-ipv6",
    }
)
"""Those after which a node that lost its datastore cannot know where a sandbox's address is."""
