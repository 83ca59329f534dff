"""The pool of a node of IPv6: one /80 on one ENI, asked for once, and nothing else is asked of EC2."""

from __future__ import annotations

import re
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Network
from pathlib import Path

import pytest

from ipamd.ipamctl.main import VERBS
from ipamd.model.address import AddressState
from ipamd.model.blocked import Blocked
from ipamd.model.cloud import INTENT_TAG
from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import (
    CloudDeniedError,
    CloudError,
    EniLimitError,
    PoolEmptyError,
    SubnetExhaustedError,
    WiringError,
)
from ipamd.model.family import IPV6
from ipamd.model.history_answer import HistoryQuestion
from ipamd.model.refusals import RefusalCode
from ipamd.model.words import MANY
from ipamd.pb import introspection_pb2 as pb
from ipamd.report.explain import explain
from ipamd.settings import NetworkConfig, PoolConfig, Settings
from tests.errors import refused_add
from tests.fakes.cloud import IDENTITY, LIMITS, PRIMARY, SUBNET, FakeEc2
from tests.fakes.node import FakeNode
from tests.unit.service.test_what_if import ask

NETWORK = NetworkConfig(ipv4=False, ipv6=True)
LOWER, HIGHER = IPv6Network("2001:db8:1:2:a::/80"), IPv6Network("2001:db8:1:2:b::/80")
ASSIGNED = "assign_prefixes"


def node_of(path: Path, *, ec2: FakeEc2 | None = None, **pool: object) -> FakeNode:
    """A node of IPv6 that is not brought up yet."""
    shipped = Settings(network=NETWORK, pool=PoolConfig(**pool))  # type: ignore[arg-type]
    return FakeNode(path, network=NETWORK, ec2=ec2, settings=shipped.pool_settings(max_pods=29))


def with_prefixes(ec2: FakeEc2, *prefixes: IPv6Network) -> FakeEc2:
    """Somebody gave the primary ENI prefixes before us."""
    ec2.enis[PRIMARY] = replace(ec2.enis[PRIMARY], prefixes=frozenset(prefixes))
    return ec2


def with_subnets_of(other: FakeEc2) -> FakeEc2:
    """Another instance in the same subnets."""
    ec2 = FakeEc2(family=IPV6)
    ec2.subnets = other.subnets.copy()
    return ec2


def serving(node: FakeNode) -> set[object]:
    """The prefixes of the pool."""
    return {row.prefix for row in node.datastore.addresses() if row.is_rest}


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_prefix_that_is_shown_again_serves_again(tmp_path: Path, *, is_restarted: bool) -> None:
    """Two looks lack the only /80, and EC2 refuses another one, as there is one: metadata shows it, and EC2 is asked (I9)."""
    node = node_of(tmp_path)
    node.bring_up()
    node.runtime.run("a")
    attached = node.add("a")
    true = node.ec2.enis[PRIMARY]
    node.ec2.enis[PRIMARY] = replace(true, prefixes=frozenset())
    node.look_twice()
    assert serving(node) == set()
    node.ec2.fail[ASSIGNED] = [EniLimitError("full") for _ in range(9)]
    node.pool.run_once()
    node.ec2.enis[PRIMARY] = true
    if is_restarted:
        node.crash()
        node.bring_up()
    for _ in range(20):
        node.clock.advance(10)
        node.app.cloud.run_once()
        node.pool.run_once()
    assert serving(node) == true.prefixes
    assert node.datastore.attachments() == (attached,)
    assert not any(row.is_lost for row in node.datastore.addresses())


@pytest.mark.parametrize(
    "pool",
    [
        {},
        {"warm_ip_target": 50, "warm_prefix_target": 5, "minimum_ip_target": 100},
        {"max_pods": 5, "max_eni": 1, "warm_target": "auto"},
    ],
    ids=["default", "targets", "caps"],
)
def test_one_prefix_and_then_nothing(tmp_path: Path, pool: dict[str, object]) -> None:
    """Whatever the targets: one AssignIpv6Addresses, and no call more, however many pods come and go in an hour (I13)."""
    node = node_of(tmp_path, **pool)
    node.bring_up()
    assert node.ec2.calls[ASSIGNED] == 1
    assert serving(node) == node.ec2.enis[PRIMARY].prefixes
    node.clock.advance(3600)
    node.pool.run_once()  # with it the one look for leaked ENIs
    calls = node.ec2.calls.copy()
    for number in range(100):
        node.add(f"c{number}")
    for number in range(60):
        node.delete(f"c{number}")
    node.cool()
    for _ in range(10):
        node.clock.advance(400)
        node.pool.run_once()
    assert node.ec2.calls == calls
    assert node.pool._pause_s() is None
    assert sum(row.state is AddressState.ASSIGNED for row in node.datastore.addresses()) == 40
    node.assert_sound()


def test_free_addresses_are_answered_for_before_any_is_given(tmp_path: Path) -> None:
    """While the kernel refuses it the prefix is left out, and the next look takes it: no packet to a free address loops."""
    node = node_of(tmp_path, ec2=with_prefixes(FakeEc2(), LOWER))
    node.hostnet.fail["reject_free_addresses"] = [WiringError("refused")]
    with pytest.raises(WiringError):
        node.bring_up()
    assert (serving(node), node.hostnet.answered) == (set(), set())
    node.bring_up()
    assert (serving(node), node.hostnet.answered) == ({LOWER}, {LOWER})


def test_what_means_nothing_is_named(tmp_path: Path) -> None:
    """The pool's sentence names the targets that were set and mean nothing (I15)."""
    node = node_of(tmp_path, warm_ip_target=50, prefix_delegation=True)
    node.bring_up()
    sentence = node.demand.status.sentence
    assert sentence.endswith("without meaning here: WARM_IP_TARGET, ENABLE_PREFIX_DELEGATION")
    node.clock.advance(1)
    assert Settings(pool=PoolConfig(warm_ip_target=50)).meaningless() == ()


def test_a_prefix_that_is_there_is_used(tmp_path: Path) -> None:
    """Of several the lowest; none is asked for; and one that has sandboxes stays, though another is lower by now."""
    node = node_of(tmp_path, ec2=with_prefixes(FakeEc2(family=IPV6), HIGHER))
    node.bring_up()
    assert (serving(node), node.ec2.calls[ASSIGNED]) == ({HIGHER}, 0)
    given = node.add("c1")
    assert given.address in HIGHER
    with_prefixes(node.ec2, LOWER, HIGHER)
    node.look_twice()
    assert serving(node) == {HIGHER}
    node.crash(keep_datastore=False)  # a lost file: the kernel tells which one serves
    node.runtime.run("c1")
    node.bring_up()
    assert serving(node) == {HIGHER}
    assert node.datastore.attachments()[0].address == given.address
    other = FakeNode(tmp_path / "other", network=NETWORK, ec2=with_prefixes(FakeEc2(family=IPV6), HIGHER, LOWER))
    other.bring_up()
    assert (serving(other), other.ec2.calls[ASSIGNED]) == ({LOWER}, 0)


def test_a_lost_answer_asks_for_no_second_prefix(tmp_path: Path) -> None:
    """Describe tells what the call did; while it does not show a prefix it may lag, and is asked again before a second call (I9)."""
    node = node_of(tmp_path)
    node.ec2.lose[ASSIGNED] = [CloudError("the answer was lost")]
    before = node.ec2.enis[PRIMARY]
    node.ec2.described[PRIMARY] = [before, before]
    node.bring_up()
    assert serving(node) == set()
    for _ in range(4):
        node.clock.advance(5)
        node.pool.cycle()
    assert (serving(node), node.ec2.calls[ASSIGNED]) == (node.ec2.enis[PRIMARY].prefixes, 1)
    node.assert_sound()


@pytest.mark.parametrize("has_happened", [True, False])
def test_a_crash_in_the_call(tmp_path: Path, has_happened: bool) -> None:
    """After a kill between intent and answer the ENI's Describe decides: what is there is used, else it is asked for once (I9)."""
    node = node_of(tmp_path)

    class KilledError(BaseException):
        """The process is gone."""

    def die(name: str) -> None:
        if name == ("growth.allocated" if has_happened else "growth.intent-opened"):
            raise KilledError

    node.failpoint = die
    with pytest.raises(KilledError):
        node.bring_up()
    node.crash()
    node.bring_up()
    for _ in range(30):
        node.clock.advance(5)
        node.pool.cycle()
    assert len(serving(node)) == len(node.ec2.enis[PRIMARY].prefixes) == 1
    assert node.ec2.calls[ASSIGNED] == 1
    assert not node.provisioner.has_open_intents()


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (SubnetExhaustedError("no /80", code="InsufficientCidrBlocks", answer="no free /80"), Blocked.SUBNET_FULL, "no free /80"),
        (
            CloudDeniedError("denied", code="UnauthorizedOperation", next_step="allow ec2:AssignIpv6Addresses"),
            Blocked.DENIED,
            "ec2:AssignIpv6Addresses",
        ),
    ],
)
def test_a_refusal_explains_itself(tmp_path: Path, error: CloudError, kind: Blocked, words: str) -> None:
    """A full subnet and a denied call are the cause that a refused ADD names; what is refused is asked for seldom (I13, I14)."""
    node = node_of(tmp_path)
    node.ec2.fail[ASSIGNED] = [error] * 99
    node.bring_up()
    with pytest.raises(PoolEmptyError) as refusal:
        node.add("c1", deadline_s=0.5)
    assert words in str(refusal.value)
    assert node.app.pool_empty[kind] == 1
    for _ in range(60):
        node.clock.advance(60)
        node.pool.run_once()
    assert node.ec2.calls[ASSIGNED] <= 7
    node.ec2.fail.clear()
    node.clock.advance(3600)
    node.pool.run_once()
    node.add("c2")


def test_an_eni_that_others_filled_is_named(tmp_path: Path) -> None:
    """Single addresses take its slots: ADD and status say which ENI has none for a /80."""
    node = node_of(tmp_path)
    node.ec2.fail[ASSIGNED] = [EniLimitError("no slot is left", code="PrivateIpAddressLimitExceeded")] * 9
    node.bring_up()
    with pytest.raises(PoolEmptyError, check=refused_add(RefusalCode.NO_ADDRESS)):
        node.add("c1", deadline_s=0.5)
    assert node.app.pool_empty[Blocked.ENI_LIMIT] == 1
    assert f"{PRIMARY} takes no /80" in str(node.app.introspection.GetStatus(pb.GetStatusRequest()))


def test_an_excluded_primary_eni(tmp_path: Path) -> None:
    """Its subnet is not for pods: an ENI with an address of its own is made for them, and the /80 is asked for on that (I9)."""
    ec2 = FakeEc2(family=IPV6)
    ec2.subnets[SUBNET] = replace(ec2.subnets[SUBNET], tags={"kubernetes.io/role/cni": "0"})
    ec2.add_subnet("subnet-2", "10.0.16.0/20", role="1")
    node = node_of(tmp_path, ec2=ec2)
    node.bring_up()
    (made,) = [eni for eni in ec2.attached() if eni.eni_id != PRIMARY]
    assert (made.has_ipv6, made.subnet_id, len(made.prefixes), len(made.secondary_addresses)) == (True, "subnet-2", 1, 0)
    assert made.tags[INTENT_TAG]
    assert (ec2.calls["create_eni"], ec2.calls[ASSIGNED]) == (1, 1)
    assert node.add("c1").eni_id == made.eni_id
    node.clock.advance(3600)
    node.pool.run_once()  # with it the one look for leaked ENIs
    calls = ec2.calls.copy()
    node.clock.advance(400)
    node.pool.run_once()
    assert ec2.calls == calls
    node.assert_sound()


def test_a_subnet_without_ipv6_gets_no_eni(tmp_path: Path) -> None:
    """However much room it has for IPv4: status says why, and the ENI is made where it can have a /80 (I13)."""
    ec2 = FakeEc2(family=IPV6)
    ec2.subnets[SUBNET] = replace(ec2.subnets[SUBNET], tags={"kubernetes.io/role/cni": "0"})
    for number, has_ipv6 in ((2, False), (3, True)):
        cidr, free_count = f"10.0.{16 * number}.0/20", 3000 // number
        ec2.add_subnet(f"subnet-{number}", cidr, free_count=free_count, has_ipv6=has_ipv6, role="1")
    node = node_of(tmp_path, ec2=ec2)
    node.bring_up()
    (made,) = [eni for eni in ec2.attached() if eni.eni_id != PRIMARY]
    assert (made.subnet_id, ec2.calls["create_eni"]) == ("subnet-3", 1)
    told = {one["subnet_id"]: one["unusable_reason"] for one in ask(node, "GetStatus")["subnets"]}
    assert told == {SUBNET: "excluded by the tag kubernetes.io/role/cni=0", "subnet-2": "without IPv6", "subnet-3": ""}
    ec2.subnets["subnet-3"] = replace(ec2.subnets["subnet-3"], has_ipv6=False)
    other = FakeNode(tmp_path / "other", network=NETWORK, ec2=with_subnets_of(ec2))
    other.bring_up()
    with pytest.raises(PoolEmptyError, check=refused_add(RefusalCode.NO_ADDRESS)):
        other.add("c1", deadline_s=0.5)


def test_an_excluded_primary_eni_and_one_of_others(tmp_path: Path) -> None:
    """What somebody else attached may have no IPv6: the /80 is on an ENI of ours, and the other one is no error and is left alone."""
    ec2 = FakeEc2(family=IPV6)
    ec2.subnets[SUBNET] = replace(ec2.subnets[SUBNET], tags={"kubernetes.io/role/cni": "0"})
    ec2.add_subnet("subnet-2", "10.0.16.0/20", role="1")
    others = replace(ec2.enis[PRIMARY], eni_id="eni-others", mac="02:00:00:00:00:77", device_index=1, has_ipv6=False)
    others = replace(others, primary_address=IPv4Address("10.0.16.50"), subnet_id="subnet-2", attachment_id="a-1")
    ec2.enis[others.eni_id] = others
    node = node_of(tmp_path, ec2=ec2)
    node.bring_up()
    (made,) = [eni for eni in ec2.attached() if eni.eni_id not in (PRIMARY, others.eni_id)]
    assert (len(made.prefixes), ec2.enis[others.eni_id].prefixes) == (1, frozenset())
    assert node.add("c1").eni_id == made.eni_id
    assert not [one for one in node.health.conditions() if "eni-others" in one]
    node.assert_sound()


def test_enis_without_ipv6_and_those_of_others(tmp_path: Path) -> None:
    """They are named, give nothing, and are no error: the pool is what it was."""
    node = node_of(tmp_path)
    node.bring_up()
    plain = replace(node.ec2.enis[PRIMARY], eni_id="eni-plain", mac="02:00:00:00:00:77", device_index=1, has_ipv6=False)
    plain = replace(plain, primary_address=IDENTITY.subnet_cidr[50], attachment_id="a-1", prefixes=frozenset())
    trunk = replace(
        plain, eni_id="eni-trunk", mac="02:00:00:00:00:78", device_index=2, interface_type="trunk", attachment_id="a-2"
    )
    trunk = replace(trunk, primary_address=IDENTITY.subnet_cidr[51], prefixes=frozenset({LOWER}), has_ipv6=True)
    node.ec2.enis |= {plain.eni_id: plain, trunk.eni_id: trunk}
    result = node.look_twice()
    assert result.foreign == ["ENI eni-plain has no IPv6 address"]
    assert serving(node) == node.ec2.enis[PRIMARY].prefixes
    assert not [one for one in node.health.conditions() if "eni-plain" in one or "eni-trunk" in one]
    assert node.ec2.calls[ASSIGNED] == 1


def test_the_prefix_is_taken_away(tmp_path: Path) -> None:
    """One answer without it proves nothing, but nobody is given an address meanwhile (I7, I11); after two sandboxes keep theirs (I2),
    a condition says so, another /80 is asked for, and new sandboxes get addresses of that.
    """
    node = node_of(tmp_path)
    node.bring_up()
    live = node.add("c1")
    former = node.ec2.enis[PRIMARY].prefixes
    with_prefixes(node.ec2)
    node.clock.advance(400)
    node.enis.sync_with_ec2(IDENTITY)
    with pytest.raises(PoolEmptyError):
        node.datastore.reserve(node.key("c9"))
    node.look_twice()
    row = node.datastore.address(live.address)
    assert row is not None
    assert (row.state, row.is_lost) == (AddressState.ASSIGNED, True)
    assert any("lost" in one for one in node.health.conditions())
    node.pool.cycle()
    assert node.ec2.calls[ASSIGNED] == 2
    later = node.add("c2").address
    assert not any(later in prefix for prefix in former)
    node.ec2.enis[PRIMARY] = replace(node.ec2.enis[PRIMARY], prefixes=node.ec2.enis[PRIMARY].prefixes | former)
    node.look_twice()
    assert not node.datastore.counts().lost
    assert node.datastore.audit() == []


def test_a_type_without_prefixes(tmp_path: Path) -> None:
    """An instance that is not built on Nitro gets no /80: EC2 is not asked, and the refusal says what to use."""
    limits = InstanceLimits("m4.large", 2, 10, hypervisor="xen")
    node = node_of(tmp_path, ec2=FakeEc2(limits=limits, family=IPV6))
    node.bring_up()
    with pytest.raises(PoolEmptyError, check=refused_add(RefusalCode.NO_ADDRESS)):
        node.add("c1", deadline_s=0.5)
    assert node.ec2.calls[ASSIGNED] == 0
    assert any("not built on Nitro" in one for one in node.health.conditions())
    assert LIMITS.supports_prefixes


def test_metadata_that_agrees_asks_nothing(tmp_path: Path) -> None:
    """What metadata shows of an ENI with a /80, and another one that does not serve, is no difference (I13)."""
    node = node_of(tmp_path, ec2=with_prefixes(FakeEc2(family=IPV6), LOWER, HIGHER))
    node.bring_up()
    node.clock.advance(3600)
    node.pool.run_once()  # with it the one look for leaked ENIs
    calls = node.ec2.calls.copy()
    for _ in range(3):
        node.clock.advance(400)
        node.cloud_reconciler.take_turn()
        node.pool.run_once()
    assert node.cloud_reconciler.difference().count == 0
    assert node.ec2.calls == calls
    with_prefixes(node.ec2, HIGHER)  # the one that serves goes: metadata says so
    node.clock.advance(400)
    node.cloud_reconciler.take_turn()
    assert node.cloud_reconciler.difference().count == 1


def test_no_screen_tells_a_number_of_free_addresses_or_a_prefix_of_ipv4(tmp_path: Path) -> None:
    """Every verb, with EC2 refusing another /80: people read that there are more than can be used; no target has an effect."""
    node = node_of(tmp_path)
    node.ec2.fail[ASSIGNED] = [SubnetExhaustedError("full")]
    node.bring_up()
    obstacles = ask(node, "Plan")["obstacles"]
    assert [one["subject"] for one in obstacles if one["subject"].startswith("/")] == ["/80 prefixes"]
    node.clock.advance(3600)
    node.pool.run_once()
    node.add("a")
    shown = {
        name: verb.render(ask(node, verb.rpc))
        for name, verb in VERBS.items()
        if name in ("status", "enis", "plan", "attachments")
    }
    text = "\n".join([*shown.values(), str(node.datastore.counts())])
    assert not re.search(rf"/28|{MANY // 1000}\d\d\d", text), text
    assert text.count("more than can be used") == 4
    assert "WARM" not in text, "no target means anything"
    assert "auto" not in shown["plan"]
    (eni,) = ask(node, "ListEnis")["enis"]
    assert eni["free_count"] == ask(node, "GetStatus")["pool"]["free_count"] == MANY


def test_what_is_told_of_the_rest(tmp_path: Path) -> None:
    """A free address of the /80 is explained though it has no row, one that is never given as that, and one outside as not known."""
    node = node_of(tmp_path)
    node.bring_up()
    (prefix,) = serving(node)
    assert isinstance(prefix, IPv6Network)
    sources = node.app.introspection.sources
    given = node.add("a").address

    def told(address: object) -> str:
        return "; ".join(explain(sources, HistoryQuestion(str(address), 50)).sentences)

    free = given + 7
    for spelt in (free, free.exploded, free.exploded.upper()):
        assert told(spelt).startswith(f"{free} is free since ")
        assert f"it is part of the delegated prefix {prefix}" in told(spelt)
        assert "never given" not in told(spelt)
    assert told(given).startswith(f"{given} is assigned since ")
    for end in (prefix[0], prefix[-1]):
        assert "it is never assigned: the first and the last address of a /80 are left out" in told(end)
    assert told(prefix[-1] + 1).startswith(f"{prefix[-1] + 1} is not of this node")
    node.assert_sound()


def test_a_prefix_that_was_taken_from_many_is_replaced_at_once(tmp_path: Path) -> None:
    """What its sandboxes had counts no more, and takes nothing from what is wanted (I18)."""
    node = node_of(tmp_path)
    node.bring_up()
    for number in range(5):
        node.add(f"c{number}")
    node.pool.run_once()  # nothing is wanted
    node.ec2.enis[PRIMARY] = replace(node.ec2.enis[PRIMARY], prefixes=frozenset())
    result = node.enis.sync_with_ec2(IDENTITY)
    while result.again_s is not None:
        node.clock.advance(result.again_s)
        node.pool.run_once()
        result = node.enis.sync_with_ec2(IDENTITY)
    node.pool.run_once()
    assert len(node.ec2.enis[PRIMARY].prefixes) == 1
    node.add("next")
