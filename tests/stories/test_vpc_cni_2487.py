"""amazon-vpc-cni-k8s #2487 (2023): pods hung in Terminating for a day because the daemon was away when they ended.

During a rollout of the daemon the plugin could not connect, its DEL failed, and the runtime asked again and again: pods stayed,
and (their #2331) the daemon could not even be scheduled on a node that waited for them. The cure (pull request 2350) was to say
success and forget; then the address of every such pod stays taken until a restart finds its veth missing
(pkg/ipamd/datastore/data_store.go, ReadBackingStore), or for ever if it does not.

Here: the plugin writes the DEL into a spool on disk, fsynced, and only then says success (`cni_plugin/spool.py`); the daemon
carries the spool out before it serves ADD (`SpooledDeletes.replay`; I3). Real plugin, real daemon, real kernel.
Bound: 5 s (real) for a DEL without the daemon; the addresses are free when the daemon says ready.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.families import HEAVY_IPV6, in_both_of_lab, lab_family_for
from tests.rig import Rig, rig
from tests.stories.plugin_stub import plugin_that_skips

pytestmark = pytest.mark.privileged

DEL_BOUND_S = 5.0


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """One node of a family for the file."""
    with rig(family=lab_family_for(request)) as made:
        yield made


def play(rig: Rig, *names: str) -> None:
    """Three sandboxes end while the daemon is dead; then it comes back."""
    for name in names:
        rig.node.make_netns(name)
        assert rig.cni("ADD", name).ok
    rig.kill()
    for name in names:
        began = time.monotonic()
        assert rig.delete(name).ok, "its pod hangs in Terminating"
        assert time.monotonic() - began <= DEL_BOUND_S
    rig.start()
    assert rig.attachments() == {}, "addresses of pods that are gone are still taken"
    rig.assert_sound(expected=0)


@in_both_of_lab("made")
def test_a_del_without_the_daemon_is_carried_out_when_it_is_back(made: Rig) -> None:
    """No pod hangs, no address leaks (I3)."""
    play(made, "a", "b", "c")


@in_both_of_lab("made", HEAVY_IPV6)
def test_addresses_leak_without_the_spool(made: Rig) -> None:
    """With the cure of amazon-vpc-cni-k8s in its place, success and forget, three dead pods keep their addresses."""
    with (
        plugin_that_skips(made, '[ "$CNI_COMMAND" = DEL ]'),
        pytest.raises(AssertionError, match="still taken"),
    ):
        play(made, "d", "e", "f")
    for name in list(made.attachments()):
        assert made.cni("DEL", name, netns="").ok
    made.assert_sound(expected=0)
