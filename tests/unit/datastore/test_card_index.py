"""The interfaces of further network cards, beside the same found in all keys."""

from __future__ import annotations

import random

from ipamd.datastore.card_index import CardIndex
from ipamd.model.card_interfaces import interface_name, interface_number, is_further_card
from ipamd.model.ids import AttachmentKey, ContainerId, IfName

SEED = 20261130
STEPS = 400
SANDBOXES = (ContainerId("a"), ContainerId("b"))
INTERFACES = (IfName("eth0"), IfName("net1"), interface_name(2), interface_name(1), interface_name(10))


def test_it_agrees_with_a_search_of_all_keys() -> None:
    """Over random interfaces that come twice, go twice, and have gaps in their numbers."""
    chance = random.Random(SEED)
    index = CardIndex()
    recorded: set[AttachmentKey] = set()
    most_found = 0
    for _ in range(STEPS):
        key = AttachmentKey(chance.choice(SANDBOXES), chance.choice(INTERFACES))
        if chance.random() < 0.6:
            index.add(key)
            recorded.add(key)
        else:
            index.discard(key)
            recorded.discard(key)
        for container_id in SANDBOXES:
            found = [each for each in recorded if each.container_id == container_id and is_further_card(each.ifname)]
            assert index.keys_of(container_id) == sorted(found, key=lambda each: interface_number(each.ifname) or 0)
            most_found = max(most_found, len(found))
    assert most_found == 3
