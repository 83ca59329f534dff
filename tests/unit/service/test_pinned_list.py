"""The operator's list names the address of a pod on whatever node it runs, within the ranges of its namespace (docs/adr/0083)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from time import monotonic

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.model.cni_request import AttachRequest, SandboxNames
from ipamd.model.pinned_address import SAME, PinnedRange
from ipamd.model.pinned_refusals import PinnedRefusalCode
from ipamd.model.pod_annotations import ADDRESS
from ipamd.sandbox.pinned_address_choice import PinnedAddressChoice
from ipamd.settings import NetworkConfig
from tests.fakes.node import FakeNode
from tests.patience import PATIENCE_S
from tests.refusing import refused_with

RANGE = IPv4Network("10.0.12.0/28")
LISTED, OTHER, OUTSIDE = IPv4Address("10.0.12.5"), IPv4Address("10.0.12.6"), IPv4Address("10.0.13.5")
LIST = {"db/db-0": LISTED, "db/far": OUTSIDE, "web/web-0": OTHER}
CHOICE = PinnedAddressChoice((PinnedRange("db", RANGE),), kept_max_s=600, listed=LIST)


def request_of(node: FakeNode, pod: str, annotations: dict[str, str], *, namespace: str = "db", name: str = "a") -> AttachRequest:
    """ADD of a pod with annotations."""
    return replace(node.request(name), names=SandboxNames(namespace, pod, "uid"), annotations=annotations)


@pytest.mark.parametrize("annotations", [{}, {ADDRESS: SAME}, {ADDRESS: str(LISTED)}], ids=["none", "same", "the same address"])
def test_the_list_names_the_address(node: FakeNode, annotations: dict[str, str]) -> None:
    """With or without an annotation; a pod that the list does not name asks for nothing."""
    wish = CHOICE.by_annotation(request_of(node, "db-0", annotations))
    assert wish is not None
    assert (wish.pod, wish.address, wish.kept_s) == ("db/db-0", LISTED, 0)
    assert CHOICE.by_annotation(request_of(node, "db-1", {})) is None


@pytest.mark.parametrize(
    ("namespace", "pod", "annotations", "code"),
    [
        ("db", "db-0", {ADDRESS: str(OTHER)}, PinnedRefusalCode.LISTED_OTHERWISE),
        ("db", "db-1", {ADDRESS: str(LISTED)}, PinnedRefusalCode.LISTED_FOR_OTHER),
        ("db", "far", {}, PinnedRefusalCode.OUTSIDE_RANGES),
        ("web", "web-0", {}, PinnedRefusalCode.NOT_ALLOWED),
    ],
    ids=["the annotation differs", "of another pod", "outside the ranges", "no range for the namespace"],
)
def test_what_the_list_and_the_settings_do_not_allow(
    node: FakeNode, namespace: str, pod: str, annotations: dict[str, str], code: PinnedRefusalCode
) -> None:
    """Each refusal has its code, and nothing is given instead."""
    with refused_with(code):
        CHOICE.by_annotation(request_of(node, pod, annotations, namespace=namespace))


def test_a_pod_of_the_list_gets_its_address(tmp_path: Path) -> None:
    """The node whose file names it assigns it by the ADD, without an annotation."""
    node = FakeNode(tmp_path, network=NetworkConfig(pinned_ranges=(PinnedRange("db", RANGE),)), pinned_list=LIST)
    node.bring_up()
    request = request_of(node, "db-0", {})
    with ThreadPoolExecutor(1) as threads:
        deadline = Deadline.after(node.clock, 60.0)
        future = threads.submit(node.attacher.attach_sandbox, request, deadline=deadline, steps=StepTimer(node.clock))
        until = monotonic() + PATIENCE_S
        while not future.done() and monotonic() < until:
            node.pool.cycle()
        assert future.result(PATIENCE_S).address == LISTED
    assert node.ec2.calls["assign_address"] == 1
