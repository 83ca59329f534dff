"""Our plugin at the head of a chain, with Debian's reference plugins behind it, called as libcni calls a conflist.

Source of the order: the CNI specification, section "Lifecycle & Ordering": ADD in the order of the list, each with the result of the
one before; DEL in the reverse order, also after an ADD that failed in the middle.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ipamd.host.conflist import render
from ipamd.settings import DaemonConfig, Settings
from tests.families import in_both_of_lab, in_ipv4_of_lab
from tests.rig import PLUGIN_PATH, CniReply, Rig

pytestmark = pytest.mark.privileged

REFERENCE_PLUGINS = Path("/usr/lib/cni")
VERSION = "1.0.0"
TUNING = {"type": "tuning", "sysctl": {"net.ipv4.conf.eth0.arp_announce": "2"}, "mtu": 1400}
SHAPED = {"bandwidth": {"ingressRate": 8_000_000, "ingressBurst": 8_000_000}}
MAPPED = {"portMappings": [{"hostPort": 30080, "containerPort": 80, "protocol": "tcp"}]}
BROKEN = {"portMappings": [{"hostPort": "thirty", "containerPort": 80, "protocol": "tcp"}]}


@pytest.fixture
def chained(served: Rig) -> Iterator[Callable[..., Chain]]:
    """Make chains; whatever happens, what they attached is detached."""
    made: list[Chain] = []

    def make(name: str, **options: Any) -> Chain:
        made.append(Chain(served, name, **options))
        return made[-1]

    yield make
    for chain in made:
        chain.delete()
        chain.end()


class Chain:
    """A conflist of ours, and what libcni does with it."""

    def __init__(self, rig: Rig, name: str, *, runtime: Mapping[str, Any] | None = None, **config: Any) -> None:
        if not (REFERENCE_PLUGINS / "tuning").exists():
            pytest.skip("the reference plugins are not installed (containernetworking-plugins)")
        self.rig, self.name = rig, name
        self.plugins = render(Settings(daemon=DaemonConfig(**config)))["plugins"]
        self.runtime = dict(runtime or {})
        self.result: dict[str, Any] | None = None
        rig.node.make_netns(name)

    def add(self) -> CniReply:
        """ADD by every plugin until one fails; the last reply."""
        reply = CniReply(0, None)
        for plugin in self.plugins:
            reply = self._run("ADD", plugin)
            if not reply.ok:
                return reply
            self.result = reply.body
        return reply

    def check(self) -> list[CniReply]:
        """CHECK by every plugin."""
        return [self._run("CHECK", plugin) for plugin in self.plugins]

    def delete(self) -> list[CniReply]:
        """DEL by every plugin, the last one first, with what is cached of the ADD."""
        return [self._run("DEL", plugin) for plugin in reversed(self.plugins)]

    def end(self) -> None:
        """Remove the sandbox's namespace."""
        self.rig.node.remove_netns(self.name)

    def _run(self, verb: str, plugin: Mapping[str, Any]) -> CniReply:
        kind = plugin["type"]
        conf = {"cniVersion": VERSION, "name": "vpc-ipamd", **{key: one for key, one in plugin.items() if key != "capabilities"}}
        wanted = {key: self.runtime[key] for key in plugin.get("capabilities", {}) if key in self.runtime}
        if wanted:
            conf["runtimeConfig"] = wanted
        if self.result is not None:
            conf["prevResult"] = self.result
        env = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": self.name,
            "CNI_NETNS": f"/run/netns/{self.name}",
            "CNI_IFNAME": "eth0",
            "CNI_PATH": str(REFERENCE_PLUGINS),
        }
        path = PLUGIN_PATH if kind == "vpc-cni" else str(REFERENCE_PLUGINS / kind)
        done = self.rig.node.run([path], env=env, stdin_bytes=json.dumps(conf).encode(), timeout_s=120, check=False)
        return CniReply(done.returncode, json.loads(done.stdout) if done.stdout.strip() else None)


@in_both_of_lab("served")
def test_tuning(served: Rig, chained: Callable[..., Chain]) -> None:
    """It changes a sysctl in the sandbox; CHECK of both finds nothing to say."""
    chain = chained("tuned", chained_plugins=json.dumps([{key: one for key, one in TUNING.items() if key != "mtu"}]))
    added = chain.add()
    assert added.ok, added.body
    key = "net.ipv4.conf.eth0.arp_announce"
    assert served.node.run(["ip", "netns", "exec", "tuned", "sysctl", "-n", key]).stdout.strip() in ("2", b"2")
    assert served.lab.ping(source="host-a", targets=[added.any_address])[added.any_address]
    assert [reply.body for reply in chain.check()] == [None, None]
    assert all(reply.ok for reply in chain.delete())
    served.assert_sound(expected=0)


@in_ipv4_of_lab("served")
def test_tuning_of_the_mtu(served: Rig, chained: Callable[..., Chain]) -> None:
    """What a chained plugin changes on the sandbox's side is not undone, and DEL frees everything."""
    chain = chained("small", chained_plugins=json.dumps([TUNING]))
    added = chain.add()
    assert added.ok, added.body
    assert served.lab.ping(source="host-a", targets=[added.any_address])[added.any_address]
    assert all(reply.ok for reply in chain.delete())
    served.assert_sound(expected=0)


@in_both_of_lab("served")
def test_bandwidth(served: Rig, chained: Callable[..., Chain]) -> None:
    """It finds our host veth in the result and shapes it; its DEL and ours leave nothing."""
    chain = chained("shaped", bandwidth=True, runtime=SHAPED)
    added = chain.add()
    if not added.ok and added.body is not None and "vpc-cni" not in str(added.body):
        message = str(added.body.get("msg", ""))
        assert all(reply.ok for reply in chain.delete())
        served.assert_sound(expected=0)
        pytest.skip(f"this kernel has no qdisc for the bandwidth plugin: {message}")
    assert added.body is not None
    host_veth = added.body["interfaces"][0]["name"]
    assert b"tbf" in _bytes(served.node.run(["tc", "qdisc", "show", "dev", host_veth]).stdout)
    assert served.lab.ping(source="host-a", targets=[added.any_address])[added.any_address]
    assert [reply.body for reply in chain.check()] == [None, None]
    assert all(reply.ok for reply in chain.delete())
    served.assert_sound(expected=0)


@in_both_of_lab("served")
def test_portmap(served: Rig, chained: Callable[..., Chain]) -> None:
    """It passes our result on, and CHECK of ours holds; DEL in the reverse order leaves nothing."""
    chain = chained("mapped", portmap=True, runtime=MAPPED)
    added = chain.add()
    if not added.ok:
        assert all(reply.ok for reply in chain.delete())
        served.assert_sound(expected=0)
        pytest.skip(f"portmap does not work on this machine: {added.body}")
    assert chain.check()[0].ok  # portmap's own CHECK looks for rules of IPv6, which it made none of
    assert all(reply.ok for reply in chain.delete())
    served.assert_sound(expected=0)


@in_both_of_lab("served")
@pytest.mark.parametrize("is_whole", [True, False], ids=["DEL of every plugin", "DEL of ours only"])
def test_a_chained_plugin_that_fails_leaves_nothing_of_ours(served: Rig, chained: Callable[..., Chain], is_whole: bool) -> None:
    """The runtime sends DEL after the failed ADD, perhaps only to those that succeeded: address, veth, rules are gone (I4)."""
    chain = chained(f"failed-{is_whole}".lower(), portmap=True, runtime=BROKEN)
    failed = chain.add()
    assert not failed.ok
    assert len(served.attachments()) == 1
    if not is_whole:
        chain.plugins = chain.plugins[:1]
    replies = chain.delete()
    assert replies[-1].ok, replies[-1].body
    served.assert_sound(expected=0)


@in_ipv4_of_lab("served")
def test_del_without_add(served: Rig, chained: Callable[..., Chain]) -> None:
    """And a second DEL, with a result of nobody's ADD: success, and nothing was there to lose (I3)."""
    chain = chained("never")
    for _ in range(2):
        assert all(reply.ok for reply in chain.delete())
    chain.result = {"cniVersion": VERSION, "ips": [{"address": "10.0.0.99/32"}]}
    assert all(reply.ok for reply in chain.delete())
    served.assert_sound(expected=0)


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text
