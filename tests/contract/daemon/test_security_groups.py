"""Security groups through the real daemon: real metadata and EC2 over HTTP, as an operator changes them."""

from __future__ import annotations

import pytest

from tests.rig import rig, wait_until

pytestmark = pytest.mark.privileged


def test_new_and_existing_enis_get_the_primary_enis_groups() -> None:
    """The primary ENI's groups change while the daemon runs: the next ENI is created with them, the existing ones follow."""
    with rig() as made:
        vpc, node = made.lab.vpc, made.node

        def groups() -> dict[int, tuple[str, ...]]:
            """Device index -> security groups, as EC2 has them."""
            return {
                eni.attachment.device_index: eni.security_groups
                for eni in vpc.enis()
                if eni.attachment and eni.attachment.instance_id == node.instance_id
            }

        assert made.add("a").ok
        wait_until(lambda: made.pool()["total_count"] == 18, what="a second ENI")
        wanted = tuple(sorted((vpc.default_group_id, vpc.add_security_group("web"))))
        primary = next(
            eni
            for eni in vpc.enis()
            if eni.attachment and (eni.attachment.instance_id, eni.attachment.device_index) == (node.instance_id, 0)
        )
        vpc.interfaces.modify(primary.eni_id, groups=wanted)
        before = dict(vpc.call_counts())
        for number in range(10):
            assert made.add(f"more-{number}").ok
        wait_until(lambda: set(groups()) == {0, 1, 2}, what="a third ENI")
        wait_until(lambda: set(groups().values()) == {wanted}, what="every ENI has the new groups")
        after = vpc.call_counts()
        assert after["CreateNetworkInterface"] - before["CreateNetworkInterface"] == 1
        assert after["ModifyNetworkInterfaceAttribute"] - before["ModifyNetworkInterfaceAttribute"] == 2, "one mark, one change"
        made.assert_sound()
