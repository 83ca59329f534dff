"""amazon-vpc-cni-k8s 3854 (2026): the VLAN ID of a pod's annotation is used as it stands.

The webhook that guards the annotation fails open, so whoever may make pods may write it while that is away. The ID names a route
table, 100 and more: an ID of 155 is the kernel's table local, and that of a living pod is that pod's link, which is made anew for the
other one.

What prevents it here: the annotation is a stranger's text. Each field has its bounds (`ipamd/model/legs/branch_eni.py`), and what
others have is compared before anything is wired (`ipamd/sandbox/legs/branch.py`, I1, I6).

Bound: 0 s: the ADD is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ipamd.model.errors import InvariantError
from ipamd.model.failures import FailureCode
from ipamd.model.legs.branch_errors import BranchAnnotationError
from tests.errors import failed
from tests.fakes.node import FakeNode
from tests.fakes.pod_facts import annotation
from tests.stories.branches import add
from tests.stories.mutations import Mutate
from tests.unit.service.branches import node_with_trunk

LOCAL = 255
"""The kernel's table of the node's own addresses. Source: linux/rtnetlink.h."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """One pod with a branch ENI lives."""
    made = node_with_trunk(tmp_path)
    made.pod_facts.put("live", annotation(2))
    add(made, "live", pod="web-0")
    yield made
    made.datastore.close()


@pytest.mark.parametrize("vlan", [0, 4095, LOCAL - 100, 2], ids=["none", "reserved", "table local", "another pod's"])
def test_what_is_out_of_bounds_or_anothers_is_refused(node: FakeNode, vlan: int) -> None:
    """And the pod that lives keeps its link."""
    node.pod_facts.put("forged", annotation(vlan, host=150, eni="eni-00009"))
    before = node.wiring.survey().vlans
    with pytest.raises(BranchAnnotationError):
        add(node, "forged", pod="forged")
    assert node.wiring.survey().vlans == before


def test_routes_go_into_table_local_where_the_bounds_are_missing(node: FakeNode, mutate: Mutate) -> None:
    """Where what is for the node would be led to a pod's branch ENI."""
    mutate("no-reserved-tables")
    node.pod_facts.put("forged", annotation(LOCAL - 100, host=150, eni="eni-00009"))
    assert add(node, "forged", pod="forged").route_table == LOCAL


def test_it_is_wired_before_anybody_refuses_it_where_nothing_is_compared(node: FakeNode, mutate: Mutate) -> None:
    """The datastore's own guard is the last one: it refuses when the link was made already, in place of the other pod's."""
    mutate("branches-not-compared")
    node.pod_facts.put("forged", annotation(2, host=150, eni="eni-00009"))
    with pytest.raises(InvariantError, check=failed(FailureCode.UPLINK_TAKEN)):
        add(node, "forged", pod="forged")
