"""multus-cni #1087 (2023): the node went down hard, a cache file was damaged, and DEL "succeeded" without deleting anything.

Multus kept what it needed for DEL in one file per sandbox. After a power loss some were not JSON any more; DEL then found
nothing to do and said success. The plugins behind it never heard of the DEL, the addresses stayed taken, and the pods that
wanted them back did not start.

What prevents it here: DEL needs the key and nothing else. A damaged configuration does not matter (`rpc/cni.py: _del` decodes
the identity only); with a damaged `state.db`, which is set aside at start, `sandbox/detach.py: _detach_unrecorded` finds the
wiring by the name that the key gives it, removes it and leaves a tombstone (I3, I4). The address, held in quarantine meanwhile,
is free again once its wiring is gone (`sandbox/quarantine.py`).

Bound: the DEL's own reply for the wiring, one list interval (10 s, fake) for the address.
"""

from __future__ import annotations

import pytest

from ipamd.model.address import AddressState
from ipamd.model.errors import TombstonedError
from ipamd.sandbox.runtime import RELIST_WITHOUT_EVENTS_S
from tests.fakes.node import FakeNode
from tests.families import in_both
from tests.stories.in_process import ask
from tests.stories.mutations import Mutate

DAMAGED = b'{"cniVersion": "1.0.0", "name": "vpc-ip'


def play(node: FakeNode) -> None:
    """The datastore is damaged, the runtime is not up yet, and DELs come with configurations cut in half."""
    made = [node.add(f"s{number}") for number in range(3)]
    node.runtime.is_down = True
    node.datastore.close()
    damaged = node.run_dir / "state.db"
    damaged.write_bytes(damaged.read_bytes()[:700] + b"\x00" * 4096)
    node.start()
    assert not node.opened.report.is_intact
    node.bring_up()
    assert node.datastore.counts().quarantined == len(made), "nobody knows whose they are: nobody gets them"

    for attachment in made:
        reply = ask(node, "DEL", attachment.key.container_id, config=DAMAGED)
        assert not reply.HasField("error"), reply
        assert attachment.host_veth not in node.wiring.wired, "DEL said success and deleted nothing"
    for attachment in made:
        node.wiring.netns.pop(attachment.netns)
    node.runtime.is_down = False
    node.clock.advance(RELIST_WITHOUT_EVENTS_S)
    node.runtime_reconciler.reconcile_once()
    node.cool()
    for attachment in made:
        row = node.datastore.address(attachment.address)
        assert row is not None
        assert row.state is AddressState.FREE
        with pytest.raises(TombstonedError):
            node.add(attachment.key.container_id)
    node.assert_sound()


@in_both("node")
def test_a_del_without_a_record_still_deletes(node: FakeNode) -> None:
    """After a damaged datastore and with a damaged configuration DEL removes the sandbox's wiring (I3, I4)."""
    play(node)


@in_both("node")
def test_success_means_nothing_without_the_search_by_name(node: FakeNode, mutate: Mutate) -> None:
    """A DEL that only looks into its records does what multus did: it says success, and the wiring stays."""
    mutate("del-without-row-does-nothing")
    with pytest.raises(AssertionError, match="deleted nothing"):
        play(node)
