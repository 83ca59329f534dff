"""`ipamctl status` on a whole node says what of its instance type, or of its primary ENI, costs hours where nobody knows it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.cloud.limits import from_table
from ipamd.ipamctl.verbs.status import STATUS
from tests.fakes.cloud import IDENTITY, PRIMARY, FakeEc2
from tests.fakes.node import FakeNode
from tests.unit.service.test_what_if import ask


@pytest.mark.parametrize(
    ("instance_type", "codes"),
    [
        ("m5.large", []),
        ("m8i.large", ["tcp-timeout"]),
        ("i7ie.48xlarge", ["max-pods-file"]),
        ("i8ge.48xlarge", ["tcp-timeout", "max-pods-file"]),
    ],
)
def test_by_type(tmp_path: Path, instance_type: str, codes: list[str]) -> None:
    """A line for each fact of the type, and none on a type without one; none is a condition."""
    limits = from_table(instance_type)
    assert limits is not None
    node = FakeNode(tmp_path, ec2=FakeEc2(limits=limits))
    node.bring_up()
    answer = ask(node, "GetStatus")
    assert [fact["code"] for fact in answer["facts"]] == codes
    assert answer["conditions"] == []
    printed = STATUS.render(answer)
    assert printed.count("\nfact ") == len(codes)
    node.datastore.close()


def test_by_the_primary_eni(node: FakeNode) -> None:
    """A timeout that is set on the primary ENI applies to its type's place: it is read with the ENI, at no call of its own."""
    assert ask(node, "GetStatus")["facts"] == []
    node.ec2.enis[PRIMARY] = replace(node.ec2.enis[PRIMARY], connection_tracking=(("TcpEstablishedTimeout", 350),))
    node.enis.sync_with_ec2(IDENTITY)
    assert [fact["code"] for fact in ask(node, "GetStatus")["facts"]] == ["tcp-timeout"]
