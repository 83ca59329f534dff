"""`ipamctl plan --network`: a file of custom networking is judged before it is applied, and a start then does what was said."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from ipamd.ipamctl.main import VERBS
from ipamd.ipamctl.verb import RefusedError, UsageError
from ipamd.ipamctl.verbs.plan import PLAN
from ipamd.model.errors import ThrottledError
from ipamd.model.failures import FailureCode
from ipamd.model.ids import SubnetId
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.subnets import OTHER_GROUPS, OTHER_SUBNET, PRIMARY_WITHOUT_PODS, CustomNetwork, ZoneNetwork
from ipamd.report.network_plan import plan_network
from ipamd.settings import SubnetsConfig
from ipamd.settings.settings_file import SIZE_MAX
from tests.fakes.cloud import IDENTITY, PRIMARY, FakeEc2
from tests.fakes.node import FakeNode
from tests.unit.service.test_what_if import RefusedRpc, ask

ZONE = IDENTITY.availability_zone
SMALL, LARGE = SubnetId("subnet-5a"), SubnetId("subnet-1a")
IN_FORCE = CustomNetwork({ZONE: ZoneNetwork(SMALL, ("sg-0a",))})


def file_of(zones: dict[str, Any], **other: object) -> bytes:
    """The content of a file."""
    return json.dumps({"zones": zones, **other}).encode()


@pytest.fixture
def ec2() -> FakeEc2:
    """Two subnets of the node's zone beside its own."""
    made = FakeEc2(pool_size=100)
    made.add_subnet(SMALL, "10.0.32.0/24", free_count=200)
    made.add_subnet(LARGE, "10.0.33.0/24", free_count=240)
    return made


@pytest.fixture
def node(tmp_path: Path, ec2: FakeEc2) -> Iterator[FakeNode]:
    """Custom networking is in force; three pods are on one ENI."""
    node = FakeNode(
        tmp_path,
        ec2=ec2,
        settings=PoolSettings(warm_ip_target=4),
        custom_network=IN_FORCE,
        subnets=SubnetsConfig(discovery=False),
    )
    node.bring_up()
    for number in range(3):
        node.add(f"pod-{number}")
    node.pool.run_once()
    yield node
    node.datastore.close()


def judged(node: FakeNode, content: bytes) -> dict[str, Any]:
    """The daemon's judgement, as `ipamctl` gets it."""
    network: dict[str, Any] = ask(node, "Plan", network_file=content, network_source="network.json")["network"]
    return network


def secondary(network: dict[str, Any]) -> dict[str, Any]:
    """The row of the one ENI that has pods."""
    (eni,) = [eni for eni in network["enis"] if eni["eni_id"] != PRIMARY]
    return dict(eni)


def test_the_file_in_force_takes_nothing(node: FakeNode) -> None:
    """The ENI with the pods is kept, and named with them; the primary one has no pods before and after."""
    network = judged(node, file_of({ZONE: {"subnet": SMALL, "securityGroups": ["sg-0a"]}}))
    assert (network["in_force"], network["entry"], network["subnet_id"]) == (True, ZONE, SMALL)
    assert network["free_count"] == node.ec2.describe_subnet(SMALL).free_count
    eni = secondary(network)
    assert (eni["fate"], eni["reason"], len(eni["pods"])) == ("kept", "", 3)
    assert not PLAN.needs_attention({"network": network})


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"subnet": LARGE, "securityGroups": ["sg-0a"]}, OTHER_SUBNET),
        ({"subnet": SMALL, "securityGroups": ["sg-0b"]}, OTHER_GROUPS),
    ],
    ids=["other subnet", "other groups"],
)
def test_a_start_does_what_was_said(node: FakeNode, entry: dict[str, Any], reason: str) -> None:
    """The ENI would be drained and detached: it is, by a start with the file, and its pods keep their addresses (I2)."""
    content = file_of({ZONE: entry})
    before = {(eni.eni_id, eni.excluded) for eni in node.datastore.enis()}
    network = judged(node, content)
    eni = secondary(network)
    assert (eni["fate"], eni["reason"], eni["reason_now"]) == ("detached", reason, "")
    assert PLAN.needs_attention({"network": network})
    assert {(eni.eni_id, eni.excluded) for eni in node.datastore.enis()} == before, "asking changes nothing"
    addresses = {attachment.address for attachment in node.datastore.attachments()}
    node.custom_network = CustomNetwork({ZONE: ZoneNetwork(SubnetId(entry["subnet"]), tuple(entry["securityGroups"]))})
    node.crash()
    node.bring_up()
    node.pool.run_once()
    assert {row.eni_id: row.excluded for row in node.datastore.enis()}[eni["eni_id"]] == reason
    assert addresses <= {attachment.address for attachment in node.datastore.attachments()}
    for number in range(3):
        node.delete(f"pod-{number}")
    node.cool()
    for _ in range(20):
        node.clock.advance(400)
        node.pool.run_once()
    assert eni["eni_id"] not in {row.eni_id for row in node.datastore.enis()}


def test_the_zones_default_and_others_are_named(node: FakeNode) -> None:
    """An entry `default` is for this node if its zone has none."""
    network = judged(node, file_of({"default": {"subnet": SMALL}, "us-west-2b": {"subnet": LARGE}}))
    assert (network["zone"], network["entry"], network["other_entries"]) == (ZONE, "default", ["us-west-2b"])
    assert tuple(network["security_group_ids"]) == IDENTITY.security_group_ids


def test_the_primary_eni_stays_attached(tmp_path: Path, ec2: FakeEc2) -> None:
    """On a node without custom networking it has pods; they stay, it gets no new one, and is never detached. Fewer pods fit."""
    node = FakeNode(tmp_path, ec2=ec2, settings=PoolSettings(warm_ip_target=4), subnets=SubnetsConfig(discovery=False))
    node.bring_up()
    node.add("a")
    network = judged(node, file_of({ZONE: {"subnet": SMALL}}))
    (eni,) = network["enis"]
    assert (eni["fate"], eni["reason"], len(eni["pods"])) == ("drained", PRIMARY_WITHOUT_PODS, 1)
    assert not network["custom_networking"]
    assert network["max_pods"] < judged(node, file_of({ZONE: {"subnet": SMALL}}, primaryEniCarriesPods=True))["max_pods"]
    node.datastore.close()


def test_a_subnet_that_no_eni_can_be_made_in_is_a_problem(node: FakeNode) -> None:
    """No entry, no such subnet, or one of another zone. EC2's silence is none."""
    node.ec2.add_subnet("subnet-9a", "10.0.40.0/24", zone="us-west-2c")
    without = judged(node, file_of({"us-west-2b": {"subnet": SMALL}}))
    assert (without["entry"], without["subnet_id"]) == ("", "")
    for network in (
        without,
        judged(node, file_of({ZONE: {"subnet": "subnet-ff"}})),
        judged(node, file_of({ZONE: {"subnet": "subnet-9a"}})),
    ):
        assert network["problem"]
        assert PLAN.needs_attention({"network": network})
    node.ec2.fail["describe_subnet"] = [ThrottledError("slow down")]
    silent = judged(node, file_of({ZONE: {"subnet": SMALL, "securityGroups": ["sg-0a"]}}))
    assert (silent["problem"], bool(silent["unchecked_reason"]), silent["free_count"]) == ("", True, -1)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", FailureCode.NETWORK_FILE_WRONG),
        (b"{}", FailureCode.NETWORK_FILE_WRONG),
        (b"\xff\xfe", FailureCode.NETWORK_FILE_UNREADABLE),
        (b" " * (SIZE_MAX + 1), FailureCode.FILE_TOO_LARGE),
    ],
    ids=["empty", "no zones", "no text", "too large"],
)
def test_a_refused_file_has_its_typed_error(node: FakeNode, content: bytes, code: FailureCode) -> None:
    """The code that a start would end with, and no judgement of ENIs."""
    network = judged(node, content)
    assert (network["refused_code"], network["enis"]) == (code, [])
    assert PLAN.needs_attention({"network": network})


def test_settings_that_contradict_custom_networking_refuse_any_file(node: FakeNode) -> None:
    """Pods of IPv6 know no custom networking: a start would end."""
    current = node.app.introspection.sources.settings
    network_settings = replace(current.now.network, ipv4=False, ipv6=True)
    current.generation = replace(current.generation, settings=replace(current.now, network=network_settings))
    refused = plan_network(node.app.introspection.sources, file_of({ZONE: {"subnet": SMALL}}), source="x")
    assert refused.refused_code == FailureCode.SETTINGS_WRONG


def test_before_the_limits_are_known_there_is_no_judgement(tmp_path: Path) -> None:
    """As for every plan."""
    node = FakeNode(tmp_path)
    with pytest.raises(RefusedRpc) as refused:
        ask(node, "Plan", network_file=b"{}", network_source="x")
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    node.datastore.close()


def arguments(**given: Any) -> Namespace:
    """Of `ipamctl plan`."""
    return Namespace(**{"settings": [], "instance_type": "", "pool": "", "network": "", **given})


def test_the_command_reads_the_file_and_sends_it(tmp_path: Path) -> None:
    """One that cannot be read, or is mixed with other questions, is wrong usage; a daemon that ignores it is named."""
    sent: dict[str, Any] = {}

    def daemon(rpc: str, **fields: object) -> dict[str, Any]:
        sent.update(fields)
        return {"network": {"refused_code": "x"}} if rpc == "Plan" and fields["network_source"] != "old" else {}

    path = tmp_path / "network.json"
    path.write_bytes(b"content")
    answer = VERBS["plan"].ask(daemon, arguments(network=str(path)))
    assert (sent["network_file"], sent["network_source"]) == (b"content", str(path))
    assert isinstance(answer, dict)
    assert PLAN.needs_attention(answer)
    for wrong in (
        {"network": str(tmp_path / "none")},
        {"network": str(path), "settings": ["MAX_ENI=1"]},
        {"network": str(tmp_path)},
    ):
        with pytest.raises(UsageError):
            VERBS["plan"].ask(daemon, arguments(**wrong))
    with pytest.raises(RefusedError):
        VERBS["plan"].ask(lambda rpc, **fields: {"sentence": rpc}, arguments(network=str(path)))
    assert not PLAN.needs_attention({"sentence": ""})


def test_the_screen_names_what_matters(node: FakeNode) -> None:
    """Refusals by code; otherwise subnet, fate and pods of each ENI, all of them on a wide screen."""
    text = PLAN.render({"network": judged(node, b"{}")})
    assert FailureCode.NETWORK_FILE_WRONG in text
    network = judged(node, file_of({ZONE: {"subnet": LARGE}, "us-west-2b": {"subnet": SMALL}}))
    text = PLAN.render({"network": network})
    assert all(pod in text for pod in secondary(network)["pods"])
    assert {LARGE, "us-west-2b", PRIMARY} <= set(text.replace(",", " ").replace(":", " ").split())
