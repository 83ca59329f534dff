"""A table with one row per failpoint: the scenario in which the daemon reaches it.

A scenario prepares a node with a sound daemon, arms the failpoint at a restart, provokes it, and says what must be true after the
next start. `after` runs on a ready daemon; `assert_sound` follows in every test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lab.vpc.limits import InstanceLimits
from tests.rig import CniReply, Rig, wait_until

LIMITS = {"small": InstanceLimits((3,), 4), "t3.nano": InstanceLimits((2,), 2)}
PER_ENI = 3
"""Addresses for sandboxes on each of three ENIs: few sandboxes fill a node. Hosts are of the other type."""


def nothing(_rig: Rig) -> None:
    """No preparation, or nothing special afterwards."""


@dataclass(frozen=True)
class Scenario:
    """How one failpoint is reached.

    Args:
        needs_fresh_node: growth begins from an instance that has no addresses yet.
        is_only_provoked: nothing but `provoke` reaches it, so that the first daemon is the one that dies; others are started twice.
        env: settings.
    """

    provoke: Callable[[Rig], None]
    prepare: Callable[[Rig], None] = nothing
    after: Callable[[Rig], None] = nothing
    count: int = 1
    needs_fresh_node: bool = False
    is_only_provoked: bool = False
    env: Mapping[str, str] = field(default_factory=dict)


def add_again(rig: Rig) -> CniReply:
    """ADD, in the namespace that may be there from before the crash."""
    if rig.node.run(["test", "-e", "/run/netns/victim"], check=False).returncode != 0:
        rig.node.make_netns("victim")
    return rig.cni("ADD", "victim")


def provoke_add(rig: Rig) -> None:
    """An ADD whose daemon dies under it, and whose runtime gives up before the next one is there."""
    rig.node.make_netns("victim")
    rig.lose_add("victim")


def provoke_failing_add(rig: Rig) -> None:
    """An ADD that the kernel refuses: the sandbox has an eth0 already."""
    rig.node.make_netns("victim")
    rig.node.run(["ip", "-n", "victim", "link", "add", "eth0", "type", "veth", "peer", "name", "p0"])
    rig.lose_add("victim")


def after_add(rig: Rig) -> None:
    """The runtime retries: the same sandbox gets an address that works, once."""
    rig.node.run(["ip", "-n", "victim", "link", "del", "p0"], check=False)
    again = add_again(rig)
    assert again.ok, again.body
    assert rig.lab.ping(source="host-a", targets=[again.any_address])[again.any_address]
    rig.assert_sound(expected=1)


def prepare_one(rig: Rig) -> None:
    """One sandbox is attached."""
    assert rig.add("victim").ok


def provoke_del(rig: Rig) -> None:
    """A DEL whose daemon dies under it is spooled by the plugin, and succeeds (I3)."""
    assert rig.cni("DEL", "victim").ok


def after_del(rig: Rig) -> None:
    """The DEL has been carried out, and stays so."""
    assert "victim" not in rig.attachments()
    assert rig.cni("ADD", "victim").code == 102, "I4: a late ADD is refused"


def provoke_unknown_del(rig: Rig) -> None:
    """A DEL of a sandbox that was never added."""
    assert rig.cni("DEL", "victim").ok


def provoke_cooling(rig: Rig) -> None:
    """A DEL, then the cooldown thread deletes the link and frees the address."""
    assert rig.cni("DEL", "victim").ok


def prepare_spooled(rig: Rig) -> None:
    """Two sandboxes whose DELs came while the daemon was away."""
    for name in ("victim", "victim2"):
        assert rig.add(name).ok
    rig.kill()
    for name in ("victim", "victim2"):
        assert rig.cni("DEL", name).ok


def prepare_unpromised(rig: Rig) -> None:
    """An ADD died after wiring and before its commit."""
    rig.restart(env={"VPC_IPAMD_FAILPOINT": "attach.wired"})
    provoke_add(rig)
    wait_until(lambda: rig.daemon is not None and rig.daemon.poll() is not None, what="died in ADD")


def prepare_three(rig: Rig) -> None:
    """Three sandboxes are attached."""
    for name in ("victim", "victim2", "victim3"):
        assert rig.add(name).ok


def after_three(rig: Rig) -> None:
    """All of them are there and answer."""
    addresses = rig.attachments()
    assert set(addresses) == {"victim", "victim2", "victim3"}
    assert all(rig.lab.ping(source="host-a", targets=addresses.values()).values())


def refuse_attach(rig: Rig) -> None:
    """EC2 will refuse the next attachment for good: the ENI must be deleted again."""
    rig.lab.faults.apply({"apis": {"AttachNetworkInterface": {"error": {"code": "AttachmentLimitExceeded"}}}})


def allow_attach(rig: Rig) -> None:
    """And allows it again."""
    rig.lab.faults.apply({"apis": {"AttachNetworkInterface": None}})


def refuse_mark(rig: Rig) -> None:
    """EC2 will attach the next ENI, and refuse to end it with the instance: it must be detached and deleted again."""
    rig.lab.faults.apply({"apis": {"ModifyNetworkInterfaceAttribute": {"error": {"code": "UnauthorizedOperation"}}}})


def allow_mark(rig: Rig) -> None:
    """And allows it again."""
    rig.lab.faults.apply({"apis": {"ModifyNetworkInterfaceAttribute": None}})


def provoke_growth(rig: Rig) -> None:
    """A sandbox takes the first of an ENI's addresses: another ENI is wanted."""
    rig.add("victim")


def after_growth(rig: Rig) -> None:
    """The pool ends where it would have without the crash: nothing created twice, nothing lost (I9)."""
    if "victim" not in rig.attachments():
        assert add_again(rig).ok
    # For a minute EC2 may not know yet an ENI that it has made, so one that was deleted before the crash is asked for so long.
    wait_until(lambda: rig.pool()["total_count"] == 2 * PER_ENI, what="two full ENIs", timeout_s=90)
    enis = [eni for eni in rig.lab.vpc.enis() if eni.description == f"aws-K8S-{rig.node.instance_id}"]
    assert len(enis) == 1, f"I9: {len(enis)} ENIs of ours, one is needed"


def after_prefix(rig: Rig) -> None:
    """The pool has one /80, as EC2 has it, and serves from it: nothing asked for twice, nothing lost (I9, I18)."""
    wait_until(lambda: rig.pool()["free_count"] > 0, what="a /80")
    (eni,) = rig.lab.vpc.enis_of(rig.node.instance_id)
    (prefix,) = eni.ipv6_prefixes
    reply = add_again(rig)
    assert reply.any_address in prefix


def prepare_release(rig: Rig) -> None:
    """A sandbox lives, and others have left: three ENIs with more addresses than the target."""
    for number in range(RELEASED_COUNT):
        assert rig.add(f"gone-{number}").ok
    assert rig.add("victim").ok
    wait_until(lambda: rig.pool()["eni_count"] == 3, what="three ENIs")
    for number in range(RELEASED_COUNT):
        assert rig.cni("DEL", f"gone-{number}").ok


def after_release(rig: Rig) -> None:
    """The pool comes to its target; the sandbox keeps its address, and no ENI is left at EC2."""
    rig.assert_sound(expected=1)
    assert rig.lab.ping(source="host-a", targets=rig.attachments().values())[rig.attachments()["victim"]]
    wait_until(lambda: rig.pool()["total_count"] == 3, what="at its target", timeout_s=120)
    ours = [eni for eni in rig.lab.vpc.enis() if eni.description == f"aws-K8S-{rig.node.instance_id}"]
    assert len(ours) + 1 == rig.pool()["eni_count"], "I9: what is left at EC2 is known"


RELEASED_COUNT = 2 * PER_ENI
RELEASE = Scenario(
    nothing,
    prepare=prepare_release,
    after=after_release,
    env={"WARM_IP_TARGET": "2", "MINIMUM_IP_TARGET": "3", "VPC_IPAMD_RELEASE_HOLD_SECONDS": "2"},
)

ADD = Scenario(provoke_add, after=after_add, is_only_provoked=True)
ANY_CHANGE = Scenario(provoke_add, after=after_add)
DEL = Scenario(provoke_del, prepare=prepare_one, after=after_del, is_only_provoked=True)
COOLING = Scenario(provoke_cooling, prepare=prepare_one, after=after_del, is_only_provoked=True)
GROWTH = Scenario(provoke_growth, after=after_growth, needs_fresh_node=True)
START = nothing
FIRST_PREFIX = Scenario(START, after=after_prefix, needs_fresh_node=True)

SCENARIOS: dict[str, Scenario] = {
    "attach.reserved": ADD,
    "attach.wired": ADD,
    "attach.committed": ADD,
    "attach.unwired": Scenario(provoke_failing_add, after=after_add, is_only_provoked=True),
    "detach.retired": DEL,
    "detach.committed": DEL,
    "detach.tombstoned": Scenario(provoke_unknown_del, is_only_provoked=True),
    "cooling.swept": COOLING,
    "cooling.forgotten": COOLING,
    "cooling.cooled": COOLING,
    "growth.intent-opened": GROWTH,
    "growth.created": GROWTH,
    "growth.named": GROWTH,
    "growth.attach-asked": GROWTH,
    "growth.attached": GROWTH,
    "growth.stored": GROWTH,
    "growth.host-ready": GROWTH,
    "growth.intent-closed": GROWTH,
    "growth.allocated": Scenario(START, after=after_growth, needs_fresh_node=True),
    "growth.detached": Scenario(
        provoke_growth,
        prepare=refuse_mark,
        after=lambda rig: (allow_mark(rig), after_growth_unblocked(rig))[0],
        needs_fresh_node=True,
    ),
    "growth.deleted": Scenario(
        provoke_growth,
        prepare=refuse_attach,
        after=lambda rig: (allow_attach(rig), after_growth_unblocked(rig))[0],
        needs_fresh_node=True,
    ),
    "release.intent-opened": RELEASE,
    "release.unassigned": RELEASE,
    "release.detached": RELEASE,
    "release.deleted": RELEASE,
    "release.torn-down": RELEASE,
    "release.stored": RELEASE,
    "restore.replayed": Scenario(START, prepare=prepare_spooled, after=after_del),
    "restore.entry-done": Scenario(START, prepare=prepare_spooled, after=after_del),
    "restore.leftover-removed": Scenario(START, prepare=prepare_unpromised, after=after_add),
    "restore.veth-settled": Scenario(START, prepare=prepare_three, after=after_three),
    "datastore.begun": ANY_CHANGE,
    "datastore.before-commit": ANY_CHANGE,
    "datastore.after-commit": ANY_CHANGE,
    "kernel.create-veth": ADD,
    "kernel.name-host": ADD,
    "kernel.raise-eth0": ADD,
}


IPV6_GROWTH: dict[str, Scenario] = {
    "growth.allocated": FIRST_PREFIX,
    "growth.intent-closed": FIRST_PREFIX,
}
"""What a node of IPv6 goes through to its only /80, which it asks for at its first start."""


def after_growth_unblocked(rig: Rig) -> None:
    """With attachments allowed again a restart clears the pause, and the pool grows."""
    rig.restart()
    after_growth(rig)


ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(("policy.owed", "policy.enforced", "policy.due", "policy.forgotten"), "tests/crash/test_policy.py"),
    "policy.forgotten-first": "tests/unit/service/test_policy.py",
    **dict.fromkeys(("branch.marked", "branch.claimed", "adopt.vlan-removed"), "tests/crash/test_branches.py"),
    **dict.fromkeys(("pinned.withdrawn", "pinned.assigned", "pinned.recorded"), "tests/lab/packets/test_pinned_addresses.py"),
    "adopt.adopted": "tests/crash/test_adoption.py",
    "adopt.leftover-removed": "tests/crash/test_simulated.py",
    "adopt.settled": "tests/crash/test_simulated.py",
    "export.begun": "tests/unit/service/test_import_and_export.py",
    "export.renamed": "tests/unit/service/test_import_and_export.py",
    "attach.interface-wired": "tests/lab/packets/test_network_cards.py",
    "export.written": "tests/unit/service/test_import_and_export.py",
    "export.restored": "tests/unit/service/test_import_and_export.py",
    "import.second": "tests/unit/service/test_import_and_export.py",
    "import.stamped": "tests/unit/service/test_import_and_export.py",
    "growth.marked": "tests/crash/test_simulated.py",
    "leaked.deleted": "tests/crash/test_simulated.py",
    "reap.judged": "tests/crash/test_simulated.py",
    "reap.done": "tests/crash/test_simulated.py",
    "rename.recorded": "tests/crash/test_simulated.py",
}
"""Failpoints that need a runtime, a policy agent, another software, more minutes than a test may last, or answers in an order of our
choosing."""
