"""Generations: what is live is taken over as a whole, what is not waits, and those who follow are told."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipamd.model.address import AddressState
from ipamd.model.cniresult import wired_mtu
from ipamd.model.errors import SettingsError, WiringError
from ipamd.model.failures import FailureCode
from ipamd.process.cloud_loop import CloudLoop
from ipamd.settings import Change, CurrentSettings, Settings, load
from tests.errors import failed
from tests.fakes.node import FakeNode
from tests.patience import PATIENCE_S
from tests.unit.test_config import GOOD, NEEDED


def test_live_and_not_live() -> None:
    """The live part is in force, the other keeps its value until a restart."""
    current = CurrentSettings(Settings())
    change = current.offer(
        load({"WARM_IP_TARGET": "3", "VPC_IPAMD_MAX_CONCURRENT_REQUESTS": "64", "VPC_IPAMD_LOG_LEVEL": "debug"})
    )
    assert change == Change(("WARM_IP_TARGET", "VPC_IPAMD_LOG_LEVEL"), ("VPC_IPAMD_MAX_CONCURRENT_REQUESTS",))
    assert current.generation.number == 2
    assert current.generation.needs_restart == ("VPC_IPAMD_MAX_CONCURRENT_REQUESTS",)
    assert (current.now.pool.warm_ip_target, current.now.daemon.max_concurrent_rpcs) == (3, 256)


def test_nothing_new_is_no_generation() -> None:
    """The same again changes nothing; taking back what waited is a generation of its own."""
    current = CurrentSettings(Settings())
    assert current.offer(Settings()) == Change()
    assert current.generation.number == 1
    for _ in range(2):
        assert current.offer(load({"VPC_IPAMD_CRI_SOCKET": "off"})) == Change((), ("VPC_IPAMD_CRI_SOCKET",))
        assert current.generation.number == 2
    assert current.offer(Settings()) == Change()
    assert (current.generation.number, current.generation.needs_restart) == (3, ())


def test_followers_are_told_what_changed_only(caplog: pytest.LogCaptureFixture) -> None:
    """Each is told its part, in order; one that fails does not stop the next."""
    current = CurrentSettings(Settings())
    told: list[object] = []

    def fails(_: object) -> None:
        told.append("fails")
        raise WiringError("the kernel refuses")

    current.follow(lambda now: now.pool.max_eni, fails)
    current.follow(lambda now: now.pool, lambda pool: told.append(pool.max_eni))
    current.follow(lambda now: now.network, lambda _: told.append("network"))
    current.offer(load({"MAX_ENI": "2"}))
    assert told == ["fails", 2]
    assert "the kernel refuses" in caplog.text
    current.offer(load({"MAX_ENI": "2", "POD_MTU": "1500"}))
    assert told == ["fails", 2, "network"]


def test_what_contradicts_itself_until_a_restart_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A live half of a pair does not go without the other half that waits."""
    monkeypatch.setattr(
        "ipamd.settings.current.contradictions",
        lambda settings: ["no"] if settings.pool.max_eni and not settings.runtime.cri_socket else [],
    )
    current = CurrentSettings(Settings())
    with pytest.raises(SettingsError, check=failed(FailureCode.SETTINGS_WRONG_UNTIL_RESTART, waiting="VPC_IPAMD_CRI_SOCKET")):
        current.offer(load({"MAX_ENI": "2", "VPC_IPAMD_CRI_SOCKET": "off"}))
    assert current.generation.number == 1
    assert current.now == Settings()


FAMILIES = ("ENABLE_IPv4", "ENABLE_IPv6")
"""Changed together: pods have one."""

POLICY = "NETWORK_POLICY_ENFORCING_MODE"
"""Anything but its default needs VPC_IPAMD_POD_VETH_NAMES too."""


@pytest.mark.parametrize("name", [name for name in GOOD if name not in (*FAMILIES, POLICY)])
def test_every_setting_is_taken_or_named(name: str) -> None:
    """No change of any setting is lost in silence."""
    needed = NEEDED.get(name, {})
    current = CurrentSettings(load(needed))
    change = current.offer(load({name: GOOD[name][0], **needed}))
    assert change.taken + change.needs_restart == (name,)
    assert current.generation.number == 2


def test_the_policy_waits_for_a_restart() -> None:
    """With the names of links that it needs."""
    change = CurrentSettings(Settings()).offer(load({POLICY: "Strict", "VPC_IPAMD_POD_VETH_NAMES": "true"}))
    assert (change.taken, change.needs_restart) == ((), ("VPC_IPAMD_POD_VETH_NAMES", POLICY))


def test_the_family_waits_for_a_restart() -> None:
    """A pool has one family for the life of the node: a change is named and not taken."""
    current = CurrentSettings(Settings())
    change = current.offer(load(dict(zip(FAMILIES, ("false", "true"), strict=True))))
    assert (change.taken, change.needs_restart) == ((), FAMILIES)
    assert current.now.network.family is Settings().network.family


def test_a_node_follows(tmp_path: Path) -> None:
    """Cooldown, MTU of new sandboxes and tags of new ENIs go by what is in force, without a restart."""
    node = FakeNode(tmp_path)
    node.bring_up()
    current = node.app.current
    before, old_enis = node.add("before"), set(node.ec2.enis)
    now = current.now
    wanted = replace(
        now,
        network=replace(now.network, pod_mtu=1400),
        pool=replace(now.pool, cooldown_s=7),
        cloud=replace(now.cloud, additional_tags=(("team", "blue"),)),
    )
    assert set(current.offer(wanted).taken) == {"POD_MTU", "IP_COOLDOWN_PERIOD", "ADDITIONAL_ENI_TAGS"}
    after = node.add("after")
    assert [wired_mtu(one.result, one.host_veth) for one in (before, after)] == [9001, 1400]
    for number in range(40):
        if set(node.ec2.enis) != old_enis:
            break
        node.add(f"more-{number}")
        node.pool.cycle()
    made = [eni for eni_id, eni in node.ec2.enis.items() if eni_id not in old_enis]
    assert [eni.tags["team"] for eni in made] == ["blue"]
    node.delete("after")
    node.cooldown.sweep()
    node.clock.advance(6.9)
    node.cooldown.free_cooled()
    row = node.datastore.address(after.address)
    assert row is not None
    assert row.state is AddressState.COOLING
    node.clock.advance(0.2)
    node.cooldown.free_cooled()
    row = node.datastore.address(after.address)
    assert row is not None
    assert row.state is AddressState.FREE
    node.assert_sound()


def test_a_change_while_the_limits_come_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is read again when the daemon starts, which is when EC2 tells the limits: neither undoes the other."""
    node = FakeNode(tmp_path)
    current, pool = node.app.current, node.app.pool.maintainer
    cloud = CloudLoop(node.app)
    node.node_info.learn_identity()
    wanted = replace(current.now, pool=replace(current.now.pool, warm_ip_target=7))
    change = threading.Thread(target=current.offer, args=(wanted,))
    set_limits = pool.set_limits

    def slowly(*args: Any, **kwargs: Any) -> None:
        if not change.ident:  # by the settings that were in force until now
            change.start()
            change.join(0.3)
        set_limits(*args, **kwargs)

    monkeypatch.setattr(pool, "set_limits", slowly)
    cloud.turn()
    change.join(PATIENCE_S)
    cloud.turn()
    assert pool.settings.warm_ip_target == current.now.pool.warm_ip_target == 7
