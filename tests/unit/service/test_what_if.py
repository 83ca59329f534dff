"""`ipamctl plan` and `ipamctl capacity` on a whole node: what they tell is what the pool does, and asking changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import grpc
import pytest

from ipamd.ipamctl import main as ipamctl
from ipamd.ipamctl.client import plain, request_of
from ipamd.ipamctl.verbs.capacity import CAPACITY
from ipamd.ipamctl.verbs.plan import PLAN
from ipamd.ipamctl.verbs.status import STATUS
from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import InvalidRequestError, ThrottledError
from ipamd.model.failures import FailureCode
from ipamd.model.growth_state import GrowthState
from ipamd.model.ids import EniId, SubnetId
from ipamd.model.pod_pools import NO_POOLS
from ipamd.model.pool_actions import ReleaseAddresses, ReleaseEni
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.subnets import SubnetView
from ipamd.report.what_if import changed_settings, what_if
from ipamd.rpc.introspection import method_handlers
from ipamd.rpc.plan_reply import plan_reply
from tests.errors import failed, refused_rpc
from tests.fakes.cloud import FakeEc2
from tests.fakes.node import SETTINGS, FakeNode

M5_LARGE = InstanceLimits("m5.large", 3, 10)


class RefusedRpc(Exception):
    """What `abort` raises."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self._code = code

    def code(self) -> grpc.StatusCode:
        """As gRPC's own error."""
        return self._code


class Context:
    """gRPC's, as far as the servicer uses it."""

    def abort(self, code: Any, details: str) -> None:
        """End the call."""
        raise RefusedRpc(code, details)


def ask(node: FakeNode, rpc: str, **fields: object) -> dict[str, Any]:
    """One RPC as `ipamctl` sees it."""
    served: Any = method_handlers(node.app.introspection)[rpc]
    return plain(served.unary_unary(request_of(rpc, **fields), Context()))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """An m5.large with default targets and one pod: 18 addresses."""
    node = FakeNode(tmp_path, ec2=FakeEc2(limits=M5_LARGE))
    node.bring_up()
    node.add("a")
    node.pool.cycle()
    yield node
    node.datastore.close()


def test_the_plan_of_a_node_at_its_target(node: FakeNode) -> None:
    """No action, one sentence, the counts and the targets that it was made from."""
    answer = ask(node, "Plan")
    assert (answer["actions"], answer["deficit_count"], answer["changed"]) == ([], 0, [])
    assert (answer["total_count"], answer["in_use_count"], answer["free_count"]) == (18, 1, 17)
    assert (answer["instance_type"], answer["eni_count"], answer["eni_limit"]) == ("m5.large", 2, 3)
    assert [t["name"] for t in answer["targets"] if t["defined"]] == ["WARM_ENI_TARGET"]
    assert not answer["auto"]["in_force"]
    text = PLAN.render(answer)
    assert "no action" in text
    assert "auto      not in force; would be auto: " in text


def test_prefix_mode_has_its_own_target_and_limit(node: FakeNode) -> None:
    """WARM_ENI_TARGET has no effect there; used slots keep their single addresses, and VPC_IPAMD_MAX_PODS caps the rest."""
    now = ask(node, "Plan")
    assert (now["prefix_mode"], now["address_limit"]) == (False, 27)
    in_prefix_mode = ask(node, "Plan", settings=["ENABLE_PREFIX_DELEGATION=true"])
    assert [t["name"] for t in in_prefix_mode["targets"] if t["defined"]] == ["WARM_PREFIX_TARGET"]
    assert (in_prefix_mode["prefix_mode"], in_prefix_mode["address_limit"]) == (True, 18 + 9 * 16)
    capped = ask(node, "Plan", settings=["ENABLE_PREFIX_DELEGATION=true", "VPC_IPAMD_MAX_PODS=110"])
    assert capped["address_limit"] == 110
    assert ask(node, "GetStatus")["pool"]["prefix_mode"] is False


def test_other_settings_are_planned_and_not_taken(node: FakeNode) -> None:
    """`--set` shows the actions in order; the pool and EC2 are as before."""
    before, settings = dict(node.ec2.calls), node.pool.settings
    answer = ask(node, "Plan", settings=["WARM_ENI_TARGET=3", "VPC_IPAMD_MAX_PODS=0"])
    assert [action["kind"] for action in answer["actions"]] == ["create-eni"]
    assert (answer["actions"][0]["address_count"], answer["deficit_count"]) == (9, 10)
    assert PLAN.render(answer).startswith("under WARM_ENI_TARGET=3, VPC_IPAMD_MAX_PODS=0; nothing is changed\n")
    assert "1. create an ENI with 9 addresses as device 2" in PLAN.render(answer)
    node.pool.cycle()
    assert (dict(node.ec2.calls), node.pool.settings) == (before, settings)


def test_what_would_be_given_back_is_an_action_too(node: FakeNode) -> None:
    """Kind, ENI and counts of both releases, as of what makes the pool grow."""
    what = what_if(node.app.introspection.sources)
    given = ReleaseAddresses(EniId("eni-1"), (IPv4Address("10.0.0.9"),), (IPv4Network("10.0.1.0/28"),))
    shown = plan_reply(replace(what, decided=replace(what.decided, actions=(given, ReleaseEni(EniId("eni-2"))))))
    assert [(one.kind, one.eni_id, one.address_count, one.prefix_count) for one in shown.actions] == [
        ("release-addresses", "eni-1", 1, 1),
        ("release-eni", "eni-2", 0, 0),
    ]
    assert "2. " in PLAN.render(plain(shown))


def test_auto_can_be_looked_at_before_it_is_turned_on(node: FakeNode) -> None:
    """Its inputs are measured in any case."""
    auto = ask(node, "Plan", settings=["VPC_IPAMD_WARM_TARGET_MODE=auto"])["auto"]
    assert auto["in_force"]
    assert auto["count"] == min(auto["held_reserve_count"] + auto["peak_count"] - auto["in_use_count"], auto["max_count"])
    assert auto["adds_per_s_1m"] > 0


def test_another_type_has_its_own_limits(node: FakeNode) -> None:
    """Slots, ENIs and maxPods are those of the type; an unknown one is refused."""
    answer = ask(node, "Plan", instance_type="m5.4xlarge")
    assert (answer["instance_type"], answer["eni_limit"], answer["slots_per_eni"]) == ("m5.4xlarge", 8, 29)
    assert {t["name"]: t["value"] for t in answer["targets"]}["VPC_IPAMD_MAX_PODS"] == 234
    assert answer["changed"] == ["m5.4xlarge"]
    with pytest.raises(RefusedRpc, check=refused_rpc(grpc.StatusCode.INVALID_ARGUMENT)):
        ask(node, "Plan", instance_type="m5.enormous")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["WARM_IP_TARGT=5"], "'WARM_IP_TARGT' is no setting of the plan; did you mean WARM_IP_TARGET?"),
        (["POD_MTU=1500"], "'POD_MTU' is no setting of the plan"),
        (["WARM_IP_TARGET"], "WARM_IP_TARGET: give it as WARM_IP_TARGET=VALUE"),
        (["WARM_IP_TARGET=-1"], "WARM_IP_TARGET='-1': must be 0 to 65536"),
        (["VPC_IPAMD_WARM_TARGET_MODE=auto", "WARM_IP_TARGET=5"], "which it computes"),
    ],
)
def test_wrong_settings_are_refused(node: FakeNode, changes: list[str], message: str) -> None:
    """As at start, with the nearest name for one that is not known."""
    with pytest.raises(RefusedRpc, check=refused_rpc(grpc.StatusCode.INVALID_ARGUMENT)) as refused:
        ask(node, "Plan", settings=changes)
    assert message in str(refused.value)


def test_all_problems_of_a_plan_at_once() -> None:
    """And an empty value is the default."""
    with pytest.raises(InvalidRequestError, check=failed(FailureCode.SETTINGS_WRONG, count=2)):
        changed_settings(SETTINGS, ["MAX_ENI=x", "nonsense=1"])
    warm = replace(SETTINGS, pool=replace(SETTINGS.pool, warm_ip_target=5))
    assert changed_settings(warm, ["WARM_IP_TARGET="]) == SETTINGS
    assert changed_settings(warm, ["MAX_ENI=2"]).pool.max_eni == 2


def test_before_the_first_cycle_there_is_no_plan(tmp_path: Path) -> None:
    """The limits are not known: a refusal that says so, for both verbs."""
    node = FakeNode(tmp_path)
    for rpc in ("Plan", "Capacity"):
        with pytest.raises(RefusedRpc, check=refused_rpc(grpc.StatusCode.FAILED_PRECONDITION)):
            ask(node, rpc)
    node.datastore.close()


def test_what_is_in_the_way_is_listed(node: FakeNode) -> None:
    """A refusal of EC2 is shown with what it is in the way of, also when the plan needs nothing."""
    node.ec2.fail["create_eni"] = [ThrottledError("EC2 CreateNetworkInterface failed", details="slow down")]
    node.pool.set_limits(M5_LARGE, settings=PoolSettings(warm_eni_target=3))
    node.pool.cycle()
    (found,) = [one for one in ask(node, "Plan")["obstacles"] if one["subject"] == "new ENIs"]
    assert found["retry_in_s"] > 0
    assert "new ENIs" in PLAN.render(ask(node, "Plan"))


def test_a_full_node_is_in_the_way_only_of_a_pool_that_needs_more(node: FakeNode) -> None:
    """A pool with too many addresses gets no advice on how to have more."""
    full = PoolSettings(warm_eni_target=0, warm_ip_target=27)
    node.pool.set_limits(M5_LARGE, settings=full)
    for _ in range(9):
        node.pool.cycle()
    needless = ask(node, "Plan", settings=["WARM_IP_TARGET=1"])
    needed = ask(node, "Plan", settings=["WARM_IP_TARGET=40"])
    assert (needless["deficit_count"], needless["obstacles"]) == (0, [])
    assert needed["deficit_count"] > 0
    assert "growth" in [obstacle["subject"] for obstacle in needed["obstacles"]]


def test_plans_are_made_beside_the_pool(node: FakeNode) -> None:
    """Asked from other threads while pods come, nothing breaks and every answer adds up."""
    answers: list[dict[str, Any]] = []

    def look() -> None:
        answers.extend(ask(node, "Plan", settings=["VPC_IPAMD_WARM_TARGET_MODE=auto"]) for _ in range(30))

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(12):
        node.add(f"p{number}")
        node.pool.cycle()
    for thread in threads:
        thread.join()
    assert len(answers) == 90
    assert all(one["total_count"] == one["in_use_count"] + one["free_count"] for one in answers)


def test_the_capacity_of_the_node(node: FakeNode) -> None:
    """All modes of the type, the one in force marked; the type's own maxPods is no bound of prefixes."""
    answer = ask(node, "Capacity")
    assert [(mode["mode"], mode["address_count"], mode["in_force"]) for mode in answer["modes"]][:2] == [
        ("single addresses", 27, True),
        ("prefixes", 432, False),
    ]
    assert "3 ENIs x 9 slots = 27" in CAPACITY.render(answer)


def subnet(free_count: int, *, is_candidate: bool = True, answer_age_s: float = 60.0) -> SubnetView:
    """A subnet of the zone by EC2's last answer."""
    return SubnetView(SubnetId("subnet-x"), free_count, is_candidate=is_candidate, answer_age_s=answer_age_s)


@pytest.mark.parametrize(
    ("subnets", "count", "bound"),
    [
        ((), 20, "the subnet's 2 free addresses besides"),
        ((subnet(2), subnet(240)), 27, "3 ENIs of 10 addresses"),
        ((subnet(2), subnet(3, answer_age_s=90.0)), 23, "the 5 free addresses of 2 subnets (by EC2's answer 90 s ago) besides"),
        ((subnet(2, is_candidate=False), subnet(240)), 27, "3 ENIs of 10 addresses"),
        ((subnet(240, is_candidate=False), subnet(4)), 22, "the subnet's 4 free addresses (by EC2's answer 60 s ago) besides"),
        ((subnet(2), subnet(-1)), 27, "3 ENIs of 10 addresses"),
        ((subnet(240, is_candidate=False),), 20, "the subnet's 2 free addresses besides"),
    ],
    ids=[
        "no answer: the node's own subnet, which EC2 has refused",
        "a tagged subnet with room",
        "two subnets, both nearly full",
        "the node's own is excluded, or custom networking names another",
        "custom networking's subnet is nearly full",
        "the room of one is not known",
        "none is for new ENIs",
    ],
)
def test_subnets_of_new_enis_narrow_the_capacity(node: FakeNode, subnets: tuple[SubnetView, ...], count: int, bound: str) -> None:
    """As far as EC2 has told their room. Each is one where new ENIs may be created, not only the node's own."""
    snapshot = node.pool.preview()
    assert snapshot is not None
    narrow = replace(snapshot, growth=GrowthState(room=2))
    pool: Any = type("Pool", (), {"settings": node.pool.settings, "pools": NO_POOLS, "preview": lambda *_: narrow})()
    sources = node.app.introspection.sources
    node.app.introspection.sources = replace(sources, pool=pool, subnets=lambda: subnets)
    single = ask(node, "Capacity")["modes"][0]
    assert single["address_count"] == count
    assert single["limited_by"].startswith(bound)


def test_the_status_says_the_auto_target(tmp_path: Path) -> None:
    """One line with the number and the reason; none with fixed targets."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_target_auto=True), ec2=FakeEc2(limits=M5_LARGE))
    node.bring_up()
    answer = ask(node, "GetStatus")
    assert "\nauto     auto: 8 because " in STATUS.render(answer)
    answer["pool"]["auto"] = ""
    assert "because" not in STATUS.render(answer)
    node.datastore.close()


def test_the_capacity_of_any_type_needs_no_daemon(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """From the built-in table, with the settings of the environment; an unknown type is wrong usage."""
    monkeypatch.setenv("MAX_ENI", "4")
    assert ipamctl.main(["--socket", "/nonexistent", "capacity", "--instance-type", "m5.4xlarge", "--vcpus", "16"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("m5.4xlarge, 16 vCPUs; limits from the built-in table")
    assert "4 ENIs x 29 slots = 116" in out
    assert "MAX_ENI=4 (the type may have 8)" in out
    assert ipamctl.main(["-o", "json", "capacity", "--instance-type", "m5.4xlarge"]) == 0
    assert '"address_count": 116' in capsys.readouterr().out
    assert ipamctl.main(["capacity", "--instance-type", "m5.enormous"]) == 2
    assert "is not in the built-in table" in capsys.readouterr().err


def test_set_is_repeatable() -> None:
    """`--set A=1 --set B=2`."""
    arguments = ipamctl.make_parser().parse_args(["plan", "--set", "A=1", "--set", "B=2", "--instance-type", "m5.large"])
    assert (arguments.settings, arguments.instance_type) == (["A=1", "B=2"], "m5.large")
