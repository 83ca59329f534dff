"""The recorded sandboxes of each pod, beside the same counted from all attachments."""

from __future__ import annotations

import random
from dataclasses import replace

from ipamd.datastore.pod_index import PodIndex
from ipamd.model.address import Address, AddressState
from ipamd.model.attachment import Attachment
from ipamd.model.ids import AttachmentKey, EniId
from ipamd.model.repeats import pod_of, recorded_by_pod
from tests.unit.datastore.support import START, a_branch, a_key, an_attachment, ip

SEED = 20261129
STEPS = 400
POD_NAMES = ("", "web-0", "web-1")
SANDBOX_COUNT = 5
INTERFACES = ("eth0", "net1")
ADDRESS = Address(ip("10.0.0.5"), EniId("eni-a"), AddressState.ASSIGNED, START)


def test_it_agrees_with_a_count_of_all_attachments() -> None:
    """Over random rows that come, change and go: pods without a name, several sandboxes of a pod, two interfaces of a sandbox."""
    chance = random.Random(SEED)
    index = PodIndex()
    rows: dict[AttachmentKey, Attachment] = {}
    has_repeated = False
    for _ in range(STEPS):
        key = a_key(chance.randint(1, SANDBOX_COUNT), chance.choice(INTERFACES))
        old = rows.pop(key, None)
        new = None
        if chance.random() < 0.7:
            new = rows[key] = replace(an_attachment(ADDRESS, key), pod_name=chance.choice(POD_NAMES))
        index.replace(old, new)
        counted = recorded_by_pod(rows.values())
        assert index.repeated() == {pod: count for pod, count in counted.items() if count > 1}
        for pod in counted:
            assert index.sandboxes_of(pod) == {row.key.container_id for row in rows.values() if pod_of(row) == pod}
        has_repeated = has_repeated or bool(index.repeated())
    assert has_repeated


def test_a_sandbox_without_an_address_of_the_pool_is_not_counted() -> None:
    """A branch ENI is the pod's own: it takes nothing from the pool."""
    index = PodIndex()
    branch = a_branch(1)
    index.replace(None, branch)
    index.replace(None, replace(branch, key=a_key(7)))
    assert index.repeated() == {}
