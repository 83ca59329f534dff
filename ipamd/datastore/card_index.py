"""The recorded interfaces of sandboxes on further network cards of the instance, that is, on any card but the first. With this index a
DEL need not search for them. Used under the lock of `MemoryState`.
"""

from __future__ import annotations

from ipamd.model.card_interfaces import interface_number, is_further_card
from ipamd.model.ids import AttachmentKey, ContainerId


class CardIndex:
    """Keys of interfaces on further network cards, by container ID. It is empty on a node without pods on further cards."""

    def __init__(self) -> None:
        self._keys: dict[ContainerId, set[AttachmentKey]] = {}

    def add(self, key: AttachmentKey) -> None:
        """Note that an interface is recorded. An interface that is not on a further network card is ignored."""
        if is_further_card(key.ifname):
            self._keys.setdefault(key.container_id, set()).add(key)

    def discard(self, key: AttachmentKey) -> None:
        """Note that an interface is not recorded any more."""
        keys = self._keys.get(key.container_id)
        if keys is None:
            return
        keys.discard(key)
        if not keys:
            del self._keys[key.container_id]

    def keys_of(self, container_id: ContainerId) -> list[AttachmentKey]:
        """Return the keys of a sandbox's interfaces on further cards, in the order of the numbers in the interfaces' names."""
        return sorted(self._keys.get(container_id, ()), key=_number)


def _number(key: AttachmentKey) -> int:
    return interface_number(key.ifname) or 0
