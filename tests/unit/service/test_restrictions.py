"""Settings that restrict a node for the life of the process: nothing is provisioned, pods are unfiltered, pods have no IPv6."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.host.conflist import render
from ipamd.model.errors import UNFILTERED, PoolEmptyError
from ipamd.model.freeze import FreezeCause
from ipamd.model.pool_settings import PoolSettings
from ipamd.settings import load
from tests.fakes.node import SETTINGS, FakeNode


def test_nothing_is_provisioned(tmp_path: Path) -> None:
    """DISABLE_NETWORK_RESOURCE_PROVISIONING: no ADD and no target makes a call that changes EC2, and an ADD says why it has none."""
    shipped = replace(SETTINGS, pool=replace(SETTINGS.pool, provisioning_disabled=True))
    settings = PoolSettings(warm_ip_target=5, is_provisioning_disabled=True)
    node = FakeNode(tmp_path, shipped=shipped, settings=settings)
    node.bring_up()
    before = node.ec2.attached()
    node.pool.cycle()
    with pytest.raises(PoolEmptyError) as refusal:
        node.add("a", deadline_s=0.5)
    assert "DISABLE_NETWORK_RESOURCE_PROVISIONING=true" in refusal.value.details
    assert node.ec2.attached() == before
    assert [freezing.cause for freezing in node.app.context.freeze.in_force()] == [FreezeCause.SETTING]


def test_unfiltered_pods_are_a_condition(tmp_path: Path) -> None:
    """VPC_IPAMD_POLICY_AGENT=absent: no agent is asked, pods start, and the condition says that no policy holds (I21)."""
    settings = load({"NETWORK_POLICY_ENFORCING_MODE": "standard", "VPC_IPAMD_POLICY_AGENT": "absent"})
    node = FakeNode(tmp_path, shipped=replace(SETTINGS, policy=settings.policy), policy_mode="standard")
    node.bring_up()
    node.add("a")
    assert node.policy_agent.calls == []
    assert UNFILTERED in node.health.conditions_by_subject()


def test_pods_without_ipv6_have_the_tuning_plugin() -> None:
    """DISABLE_POD_V6: the plugin comes before those that a setting of ours chains."""
    settings = load(
        {"DISABLE_POD_V6": "true", "VPC_IPAMD_CHAINED_PLUGINS": '[{"type": "other"}]', "ENABLE_BANDWIDTH_PLUGIN": "1"}
    )
    plugins = render(settings)["plugins"]
    assert [plugin["type"] for plugin in plugins] == ["vpc-cni", "bandwidth", "tuning", "other"]
    assert plugins[2]["sysctl"] == dict.fromkeys(
        ("net.ipv6.conf.all.disable_ipv6", "net.ipv6.conf.default.disable_ipv6", "net.ipv6.conf.lo.disable_ipv6"), "1"
    )
