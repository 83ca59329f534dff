"""What other threads, other clocks and the same key twice may do."""

from __future__ import annotations

from tests.fakes.node import FakeNode


def test_a_leftover_is_not_removed_from_under_a_new_add_of_its_key(node: FakeNode) -> None:
    """Quarantined for an hour, and then the same sandbox is added again: settling the old address leaves the new link (I2)."""
    made = node.add("a")
    node.crash(keep_datastore=False)
    node.bring_up()
    node.wiring.make_netns(made.netns)
    survey_before = node.wiring.survey
    node.follower.look()
    node.clock.advance(3700)
    renewed = []

    def survey():
        found = survey_before()
        if not renewed:
            renewed.append(node.add("a"))
        return found

    node.wiring.survey = survey  # type: ignore[method-assign]
    node.adoption.settle_quarantine({})
    assert renewed
    assert node.datastore.attachment(made.key) is not None
    assert renewed[0].host_veth in node.wiring.wired


def test_gc_after_a_clock_step_keeps_a_young_attachment(node: FakeNode) -> None:
    """NTP sets the clock forward an hour while a sandbox is being created: GC's list is still older than it (I2)."""
    from ipamd.service.deadline import Deadline
    from ipamd.service.steps import Steps

    made = node.add("young")
    node.clock.step_wall(3600)
    outcome = node.collector.collect(
        frozenset(), network_name="vpc-ipamd", deadline=Deadline.after(node.clock, 30), steps=Steps(node.clock)
    )
    assert outcome.freed == ()
    assert node.datastore.attachment(made.key) is not None
