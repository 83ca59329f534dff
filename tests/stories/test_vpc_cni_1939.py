"""amazon-vpc-cni-k8s #1939 (2022): a DEL without a namespace was skipped, and its address leaked.

When a sandbox dies by itself (its pause process killed for memory, say) its network namespace is gone before the runtime calls
DEL, and CNI_NETNS comes empty, as the specification allows. v1.10.2 took that for "nothing to do": nodes lost an address with
every such pod, until the daemon was restarted.

Here: DEL needs the sandbox's ID and nothing else (`rpc/cni.CniServicer._del`, `DetachService.detach_sandbox`): address, route
and rule are known from the record, and that the veth went with its namespace is fine (I3, I4). Real plugin, real daemon, real
kernel. Bound: 5 s (real) from the DEL until the address has cooled (cooldown set to 1 s).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.families import HEAVY_IPV6, in_both_of_lab, lab_family_for
from tests.rig import Rig, rig, wait_until
from tests.stories.plugin_stub import plugin_that_skips

pytestmark = pytest.mark.privileged


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """One node of a family for the file; IP_COOLDOWN_PERIOD is 1 s in every rig."""
    with rig(family=lab_family_for(request)) as made:
        yield made


def play(rig: Rig, *names: str) -> None:
    """Sandboxes lose their namespaces, and their veths with them; then DEL comes with an empty CNI_NETNS."""
    for name in names:
        assert rig.add(name).ok
    for name in names:
        rig.node.remove_netns(name)
    for name in names:
        assert rig.cni("DEL", name, netns="").ok
    assert rig.attachments() == {}, "the dead hold their addresses"
    wait_until(lambda: rig.pool()["cooling_count"] == 0, what="addresses cooled")
    assert rig.rule_addresses() == set()
    rig.assert_sound(expected=0)


@in_both_of_lab("made")
def test_a_del_without_namespace_frees_the_address(made: Rig) -> None:
    """The namespace is not needed to delete (I3, I4)."""
    play(made, "a", "b", "c")


@in_both_of_lab("made", HEAVY_IPV6)
def test_addresses_leak_when_a_del_without_namespace_is_skipped(made: Rig) -> None:
    """With v1.10.2's shortcut in front of the plugin the same three pods keep three addresses."""
    with (
        plugin_that_skips(made, '[ "$CNI_COMMAND" = DEL ] && [ -z "$CNI_NETNS" ]'),
        pytest.raises(AssertionError, match="the dead hold"),
    ):
        play(made, "d", "e", "f")
    assert sorted(made.attachments()) == ["d", "e", "f"]
    for name in ("d", "e", "f"):
        assert made.cni("DEL", name, netns="").ok
    made.assert_sound(expected=0)
