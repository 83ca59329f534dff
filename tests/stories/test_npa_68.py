"""aws-network-policy-agent #68 (2023, open): with the bandwidth plugin in the chain, pods under network policy do not start.

The agent hangs its programs on a clsact qdisc of the pod's host veth, the plugin limits a pod's rate by an ingress qdisc of the same
link. A link has one of the two: whoever comes second is refused with "Exclusivity flag on, cannot modify", so the first pod with the
annotation, or the first pod under policy, fails and is tried again for ever.

What prevents it here: settings of ours that ask for both are refused at start, with the two that contradict each other
(`ipamd/settings/loading.py`, I15). No pod of such a node is begun. Where ENABLE_BANDWIDTH_PLUGIN asks for it, as a manifest of
amazon-vpc-cni-k8s may, the daemon starts and says in log and status which pods will not (docs/adr/0071).

Bound: 0 s: the daemon does not start.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest

from ipamd.model.errors import SettingsError
from ipamd.settings import load
from lab.fabric import tc
from lab.fabric.netns import Netns
from tests.errors import refused_by_kernel
from tests.stories.mutations import Mutate

pytestmark = pytest.mark.privileged

ENVIRONMENT = {
    "NETWORK_POLICY_ENFORCING_MODE": "strict",
    "VPC_IPAMD_POD_VETH_NAMES": "true",
    "VPC_IPAMD_CHAINED_PLUGINS": '[{"type": "bandwidth", "capabilities": {"bandwidth": true}}]',
}


@pytest.fixture
def host() -> Iterator[Netns]:
    """A node with the host veth of one pod."""
    made = Netns.new("npa-68")
    made.ip(["link add eni0 type veth peer name pod0"])
    yield made
    made.close()


def play(host: Netns) -> None:
    """The node's daemon starts, and its first pod with a rate is chained: the agent's qdisc, then the plugin's."""
    assert load(ENVIRONMENT).policy.is_on

    def chain() -> None:
        ifindex = socket.if_nametoindex("eni0")
        tc.add_clsact(ifindex)
        tc.add_ingress(ifindex)

    host.call(chain)


def test_both_are_refused_at_start(host: Netns) -> None:
    """The error names both settings."""
    with pytest.raises(SettingsError) as caught:
        play(host)
    said = caught.value.details
    assert "NETWORK_POLICY_ENFORCING_MODE=strict" in said
    assert "VPC_IPAMD_CHAINED_PLUGINS" in said


def test_the_pod_fails_where_that_is_missing(host: Netns, mutate: Mutate) -> None:
    """The kernel refuses the second one."""
    mutate("contradictions-accepted")
    with pytest.raises(OSError, check=refused_by_kernel(errno.EEXIST)):
        play(host)
