"""No check is ever missing from the summary: what was not reached counts as failed, with the reason."""

from __future__ import annotations

from lab.demo.checks import Check, Checks, Step, Verdict, run_steps
from lab.node.errors import NodeError


def holds(*names: str) -> Step:
    """A step whose checks all hold."""

    def run(verdict: Verdict) -> None:
        for name in names:
            verdict(name, True, "seen")

    return Step(f"step of {names[0]}", names, run)


def breaks(verdict: Verdict) -> None:
    """A step that reports one check and then cannot go on."""
    verdict("first", True, "seen")
    raise NodeError("node-a is gone")


def results(*steps: Step) -> dict[str, Check]:
    """Run steps; the checks by name."""
    checks = Checks()
    run_steps(steps, checks)
    return {check.name: check for check in checks.all}


def test_a_failed_check_does_not_hide_the_later_ones() -> None:
    """A step goes on after a failed check, and so do the steps that need it."""

    def run(verdict: Verdict) -> None:
        verdict("first", False, "it does not hold")
        verdict("second", True, "it does")

    found = results(Step("one", ("first", "second"), run), Step("two", ("third",), holds("third").run, needs=("one",)))
    assert [(check.name, check.ok) for check in found.values()] == [("first", False), ("second", True), ("third", True)]


def test_a_broken_step_fails_what_it_still_owed_and_nothing_else() -> None:
    """What was reported before stays; the rest fails with the reason; an independent step runs."""
    found = results(Step("one", ("first", "second"), breaks), holds("third"))
    assert found["first"].ok
    assert found["second"] == Check("second", False, "node-a is gone")
    assert found["third"].ok


def test_steps_that_need_a_broken_one_are_not_run_and_say_why() -> None:
    """The reason passes on along the chain of needs, and the title that is announced is of a step that runs."""
    announced: list[str] = []
    checks = Checks()
    steps = [
        Step("one", ("first", "second"), breaks),
        Step("two", ("third",), holds("third").run, needs=("one",)),
        Step("three", ("fourth",), holds("fourth").run, needs=("two",)),
    ]
    run_steps(steps, checks, announce=announced.append)
    found = {check.name: check for check in checks.all}
    for name in ("third", "fourth"):
        assert not found[name].ok
        assert found[name].detail.startswith("not checked: ")
        assert "'one' broke: node-a is gone" in found[name].detail
    assert announced == ["one"]


def test_a_step_that_forgets_a_promise_has_failed_it() -> None:
    """Silence is not success."""
    found = results(Step("one", ("first", "second"), lambda verdict: verdict("first", True, "seen")))
    assert not found["second"].ok


def test_a_defect_of_a_step_is_told_by_its_type() -> None:
    """An exception that is not the lab's breaks its step only, and is named."""

    def run(_: Verdict) -> None:
        raise KeyError("phase")

    found = results(Step("one", ("first",), run), holds("second"))
    assert found["first"] == Check("first", False, "KeyError: 'phase'")
    assert found["second"].ok


def test_a_check_that_was_not_promised_breaks_its_step() -> None:
    """Otherwise a misspelt name would leave the promised one to be told as missing, and this one as extra."""
    found = results(Step("one", ("first",), lambda verdict: verdict("frist", True, "seen")))
    assert list(found) == ["first"]
    assert not found["first"].ok


def test_one_question_has_one_answer() -> None:
    """A check reported twice breaks the step: the first answer stays, the step's later promises fail."""

    def run(verdict: Verdict) -> None:
        verdict("first", False, "no")
        verdict("first", True, "yes")
        verdict("second", True, "never reached")

    found = results(Step("one", ("first", "second"), run))
    assert not found["first"].ok
    assert "reported twice" in found["second"].detail


def test_the_listener_hears_each_check_at_once() -> None:
    """Progress shows a failure when it happens, not at the end."""
    heard: list[str] = []
    checks = Checks(listener=lambda check: heard.append(check.name))
    checks.record("first", True, "")
    assert heard == ["first"]
