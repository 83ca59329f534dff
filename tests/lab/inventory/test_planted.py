"""What is planted is named, and nothing else: leaks, addresses that two claim, and hidden ENIs, among ENIs that only look so."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from ipaddress import IPv4Network

from ipamd.inventory.findings import EniProblem
from ipamd.inventory.report import InventoryReport, ReadPart
from ipamd.model.eni_tags import NO_MANAGE_TAG
from lab.vpc.model import Eni, Operator, Subnet
from tests.lab.inventory.account import InventoryAccount

OURS = "aws-K8S-i-gone"


class Plot:
    """A subnet with two nodes, and ENIs in it by what is wrong with them."""

    def __init__(self, account: InventoryAccount) -> None:
        self.account = account
        vpc = account.vpc
        self.subnet: Subnet = vpc.add_subnet("10.0.0.0/22")
        self.nodes = [
            vpc.add_instance(name=name, instance_type="m5.4xlarge", subnet_id=self.subnet.subnet_id)
            for name in ("node-a", "node-b")
        ]
        self._next = 600

    def detached(self, **changes: object) -> Eni:
        """A detached ENI of a node that is gone; `changes` of its fields."""
        self._next += 1
        eni = self.account.eni(self.subnet, self.subnet.cidr.network_address + self._next)
        eni = replace(eni, description=OURS, tags=self.account.tags("i-gone"))
        eni = replace(eni, **changes)  # type: ignore[arg-type]
        self.account.vpc.add_enis([eni])
        return eni

    def attached(self, node: int, *, maker: str = "", prefix_count: int = 0) -> Eni:
        """An ENI on a node, with the tag of the instance that made it."""
        instance_id = self.nodes[node].instance_id
        tags = self.account.tags(maker or instance_id)
        return self.account.vpc.hands.attach(
            instance_id, tags=tags, address_count=0 if prefix_count else 3, prefix_count=prefix_count
        )

    def show_also(self, shown: dict[str, list[str]]) -> None:
        """Let EC2 show addresses on further ENIs."""
        self.account.vpc.faults.apply({"describe": {"also": shown}})


def found(report: InventoryReport) -> dict[EniProblem, set[str]]:
    """Subjects of the problems, by kind."""
    by_kind: dict[EniProblem, set[str]] = {}
    for finding in report.findings:
        by_kind.setdefault(finding.problem, set()).add(finding.subject)
    return by_kind


def plant_decoys(plot: Plot) -> None:
    """ENIs that are nobody's trouble: each differs from a planted one in one thing."""
    tags = plot.account.tags("i-gone")
    plot.detached(tags=plot.account.tags("i-gone", age=timedelta(minutes=10)))
    plot.detached(tags=plot.account.tags("i-gone", cluster="green"))
    plot.detached(tags={**tags, NO_MANAGE_TAG: "true"})
    plot.detached(description="by hand")
    plot.detached(tags={})
    plot.detached(operator=Operator(principal="eks.amazonaws.com", hidden=False))
    plot.attached(0)
    plot.attached(1, prefix_count=2)


def test_exactly_what_is_planted_is_named(account: InventoryAccount) -> None:
    """Five leaks, three double claims, one hidden ENI; a second look after a minute confirms them, in one more call."""
    plot = Plot(account)
    plant_decoys(plot)
    leaks = {plot.detached().eni_id for _ in range(5)}
    single, prefixed, other = plot.attached(0), plot.attached(1, prefix_count=1), plot.attached(1)
    within_prefix = str(prefixed.prefixes[0][5])
    plot.show_also({other.eni_id: [str(single.secondary_addresses[0]), within_prefix]})
    of_two_nodes = plot.attached(1, maker=plot.nodes[0].instance_id)
    hidden = plot.detached(operator=Operator(principal="eks.amazonaws.com"))
    report = account.take()
    assert found(report) == {
        EniProblem.LEAKED: leaks,
        EniProblem.TWO_ENIS: {str(single.secondary_addresses[0]), within_prefix},
        EniProblem.TWO_NODES: {of_two_nodes.eni_id},
        EniProblem.HIDDEN: {hidden.eni_id},
    }
    assert all(finding.is_confirmed for finding in report.findings)
    (two_enis,) = [finding for finding in report.findings if finding.subject == within_prefix]
    assert set(two_enis.eni_ids) == {prefixed.eni_id, other.eni_id}
    assert report.gaps == ()
    assert account.slept_s == [60.0]
    assert account.vpc.call_counts() == {
        "DescribeSubnets": 1,
        "DescribeNetworkInterfaces": 2,
        "GetSubnetCidrReservations": 1,
    }


def test_a_sound_cluster_has_no_problem_and_needs_no_second_look(account: InventoryAccount) -> None:
    """Three calls."""
    plant_decoys(Plot(account))
    report = account.take()
    assert report.findings == ()
    assert (report.call_count, account.slept_s) == (3, [])


def test_what_is_over_at_the_second_look_is_no_problem(account: InventoryAccount) -> None:
    """An address that moves is shown twice for a moment, and a node that deletes an ENI has detached it before."""
    plot = Plot(account)
    mine, other, lasting = plot.attached(0), plot.attached(1), plot.detached()
    passing = plot.detached()
    plot.show_also({other.eni_id: [str(mine.secondary_addresses[0])]})
    sleep = account.clock.advance

    def meanwhile(seconds: float) -> None:
        account.vpc.faults.clear()
        account.vpc.hands.delete(passing.eni_id)
        sleep(seconds)

    account.clock.advance = meanwhile  # type: ignore[method-assign]
    assert found(account.take()) == {EniProblem.LEAKED: {lasting.eni_id}}


def test_without_a_second_look_problems_are_not_confirmed(account: InventoryAccount) -> None:
    """They are named all the same, as seen once."""
    plot = Plot(account)
    leak = plot.detached()
    report = account.take(second_look_s=0.0)
    assert [(finding.subject, finding.is_confirmed) for finding in report.findings] == [(leak.eni_id, False)]
    assert account.slept_s == []


def test_a_second_look_that_is_refused_is_a_gap(account: InventoryAccount) -> None:
    """The problems stay, as seen once."""
    plot = Plot(account)
    leak = plot.detached()
    sleep = account.clock.advance

    def meanwhile(seconds: float) -> None:
        account.vpc.faults.apply({"iam": [{"action": "DescribeNetworkInterfaces"}]})
        sleep(seconds)

    account.clock.advance = meanwhile  # type: ignore[method-assign]
    report = account.take()
    assert [(finding.subject, finding.is_confirmed) for finding in report.findings] == [(leak.eni_id, False)]
    assert [gap.part for gap in report.gaps] == [ReadPart.SECOND_LOOK]


def test_an_older_endpoint_hides_nothing(account: InventoryAccount) -> None:
    """It refuses the parameter, which costs one call a run; managed ENIs are in its list, and take their addresses."""
    plot = Plot(account)
    plot.detached(operator=Operator(principal="eks.amazonaws.com", hidden=False))
    account.vpc.faults.apply({"rules": {"managed_resources": "unknown-parameter"}})
    report = account.take()
    assert report.findings == ()
    assert report.subnets[0].eni_count == 3
    assert report.call_count == 4


def test_addresses_of_enis_that_ec2_does_not_show_count_in_the_forecast(account: InventoryAccount) -> None:
    """As those of other accounts in a shared subnet: EC2's own count is the sample."""
    plot = Plot(account)
    account.vpc.exhaust_subnet(plot.subnet.subnet_id, leave=100)
    report = account.take()
    (shown,) = report.subnets
    assert (shown.ec2_free_count, shown.unseen_count) == (100, shown.capacity.free_count - 100)
    assert [sample.free_count for sample in account.memory.of(shown.subnet_id).samples] == [100]


def test_hidden_enis_take_their_addresses(account: InventoryAccount) -> None:
    """A /28 with a hidden ENI in it is not free."""
    plot = Plot(account)
    block = IPv4Network("10.0.3.16/28")
    hidden = account.eni(plot.subnet, block[3])
    account.vpc.add_enis([replace(hidden, operator=Operator(principal="eks.amazonaws.com"))])
    report = account.take()
    assert report.subnets[0].capacity.block_map[3 * 16 + 1] == "+"
    assert report.subnets[0].unseen_count == 0
