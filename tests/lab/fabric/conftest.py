"""What the lab's own tests share: small labs, and plain words for what is done to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address

import pytest

from lab.lab import Lab
from lab.node.node import Node
from lab.vpc.addresses import AddressRequest
from lab.vpc.model import Eni
from tests.patience import PATIENCE_S


@pytest.fixture(scope="module")
def net() -> Iterator[Lab]:
    """Two nodes and a host without containerd; attaching and detaching take no time."""
    with Lab(name=f"test-{time.monotonic_ns()}", nodes=["node-a", "node-b"], hosts=["host-a"], containerd=False) as lab:
        yield lab
        assert lab.fabric.problems == []


def primary(lab: Lab, name: str) -> Eni:
    """The primary ENI of a node or host."""
    instance_id = lab.vpc.instance(name).instance_id
    return next(eni for eni in lab.vpc.enis() if eni.attachment and eni.attachment.instance_id == instance_id)


def assign(lab: Lab, eni: Eni, count: int = 1) -> list[IPv4Address]:
    """Have EC2 put `count` new addresses on an ENI, and wait for the wires."""
    addresses, _ = lab.vpc.interfaces.assign(eni.eni_id, AddressRequest(address_count=count))
    lab.settle()
    return list(addresses)


def attach(lab: Lab, node: Node, *, device_index: int) -> Eni:
    """Have EC2 make an ENI and attach it to a node; returns when the interface is wired."""
    eni = lab.vpc.interfaces.create(primary(lab, node.name).subnet_id, AddressRequest(), groups=(lab.vpc.default_group_id,))
    lab.vpc.interfaces.attach(eni.eni_id, node.instance_id, device_index=device_index)
    assert lab.fabric.wait_for(lambda fabric: fabric.is_wired(eni.eni_id), timeout_s=PATIENCE_S)
    return lab.vpc.eni(eni.eni_id)


def speak_as(node: Node, address: IPv4Address) -> None:
    """Make an address local to a node, as if a pod had it."""
    node.netns.ip([f"addr replace {address}/32 dev lo"])


def eventually(claim: Callable[[], bool], *, within_s: float = PATIENCE_S) -> bool:
    """Look until the claim holds; for what the kernel does later and announces to nobody."""
    deadline = time.monotonic() + within_s
    while not (held := claim()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return held
