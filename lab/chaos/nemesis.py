"""The nemesis: what a run does to the cloud (fault specs for lab/vpc/faults.py, each with its undo), and the failpoints it can arm."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from random import Random
from types import ModuleType
from typing import Any, NoReturn

import ipamd
from lab.chaos.lies import IPV6_LIES, LIE_S, LIES
from lab.errors import LabError

_Drawn = Mapping[str, Callable[[Random], dict[str, Any]]]

KERNEL_FAILPOINTS = (
    "kernel.create-veth",
    "kernel.look-at",
    "kernel.name-host",
    "kernel.name-and",
    "kernel.add-route",
    "kernel.add-rule",
    "kernel.raise-eth0",
    "kernel.add-address",
    "kernel.add-default",
    "kernel.add-neighbour",
)
"""First two words of the steps of wiring (ipamd/kernel/wiring.py); ipamd/process/adapters.py makes failpoint names of them."""

ERRORS = (
    ("*", "InternalError"),
    ("*", "RequestLimitExceeded"),
    ("*", "ServiceUnavailable"),
    ("AssignPrivateIpAddresses", "InsufficientFreeAddressesInSubnet"),
    ("AssignPrivateIpAddresses", "UnauthorizedOperation"),
    ("CreateNetworkInterface", "InsufficientFreeAddressesInSubnet"),
    ("AttachNetworkInterface", "AttachmentLimitExceeded"),
    ("AttachNetworkInterface", "InternalError"),
    ("DescribeNetworkInterfaces", "InternalError"),
    ("DeleteNetworkInterface", "InternalError"),
)


IPV6_ERRORS = ("InternalError", "RequestLimitExceeded", "InsufficientFreeAddressesInSubnet", "UnauthorizedOperation")
FAULT_S = (2.0, 12.0)


def cloud_fault(rng: Random) -> dict[str, Any]:
    """Draw one fault: its `name`, what to `apply`, how to `undo` it, and how long it lasts (`for_s`)."""
    return _drawn(rng, _FAULTS, LIES)


def ipv6_fault(rng: Random) -> dict[str, Any]:
    """Draw one fault of what a node with IPv6 alone asks of EC2, as `cloud_fault` does."""
    return _drawn(rng, IPV6_FAULTS, IPV6_LIES)


def _drawn(rng: Random, faults: _Drawn, lies: _Drawn) -> dict[str, Any]:
    name = rng.choice(sorted([*faults, *lies]))
    low, high = LIE_S if name in lies else FAULT_S
    return {"name": name, "for_s": round(rng.uniform(low, high), 2)} | {**faults, **lies}[name](rng)


def failpoint_names(package: ModuleType = ipamd) -> list[str]:
    """Every failpoint that the daemon's code declares, in any package below `package`, ascending.

    Raises: LabError if there is none: a run would arm nothing and look sound.
    """
    declared: set[str] = set()
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.", onerror=_raise):
        declared.update(getattr(importlib.import_module(module.name), "FAILPOINTS", ()))
    if not declared:
        raise LabError(f"no module of {package.__name__} declares FAILPOINTS: chaos has nothing to arm")
    return sorted(declared | set(KERNEL_FAILPOINTS))


def _raise(_: str) -> NoReturn:
    """For walk_packages, which passes over a package that it cannot import."""
    raise  # called while the ImportError is handled


def _api(api: str, fault: Mapping[str, Any]) -> dict[str, Any]:
    return {"apply": {"apis": {api: dict(fault)}}, "undo": {"apis": {api: None}}}


def _error(rng: Random) -> dict[str, Any]:
    api, code = rng.choice(ERRORS)
    return _api(api, {"error": {"code": code, "count": rng.randint(1, 4)}})


def _ipv6_error(rng: Random) -> dict[str, Any]:
    return _api("AssignIpv6Addresses", {"error": {"code": rng.choice(IPV6_ERRORS), "count": rng.randint(1, 4)}})


def _unreachable(server: str, rng: Random) -> dict[str, Any]:
    how = rng.choice(("refuse", "hang"))
    return {"apply": {"unreachable": {server: how}}, "undo": {"unreachable": {server: None}}}


_FAULTS: dict[str, Callable[[Random], dict[str, Any]]] = {
    "ec2-latency": lambda rng: _api("*", {"latency_s": {"low": 0.05, "high": round(rng.uniform(0.3, 3), 2)}}),
    "ec2-late-answers": lambda rng: _api("*", {"answer_latency_s": {"low": 0.05, "high": round(rng.uniform(0.3, 3), 2)}}),
    "ec2-throttle": lambda rng: _api("*", {"throttle": {"rate_per_s": round(rng.uniform(0.1, 1), 2), "burst": 1}}),
    "ec2-error": _error,
    "ec2-lost-answers": lambda rng: _api("*", {"lost_answers": {"rate": round(rng.uniform(0.2, 0.8), 2)}}),
    "ec2-stale-describe": lambda rng: _api("DescribeNetworkInterfaces", {"lag_s": round(rng.uniform(1, 8), 1)}),
    "ec2-unreachable": lambda rng: _unreachable("ec2", rng),
    "imds-unreachable": lambda rng: _unreachable("imds", rng),
    "imds-lag": lambda rng: _api("imds", {"lag_s": round(rng.uniform(2, 30), 1)}),
    "attach-stuck": lambda rng: {
        "apply": {"attach": {"vanishes": rng.random() < 0.5, "stuck_s": round(rng.uniform(0.5, 4), 1), "count": 1}},
        "undo": {"attach": None},
    },
}

IPV6_FAULTS: dict[str, Callable[[Random], dict[str, Any]]] = {
    "ec2-ipv6-error": _ipv6_error,
    "ec2-ipv6-hang": lambda _: _api("AssignIpv6Addresses", {"hang": True}),
    "ec2-ipv6-latency": lambda rng: _api("AssignIpv6Addresses", {"answer_latency_s": {"low": 1.0, "high": rng.randint(2, 20)}}),
    "ec2-ipv6-lost-answers": lambda rng: _api("AssignIpv6Addresses", {"lost_answers": {"count": rng.randint(1, 3)}}),
}
