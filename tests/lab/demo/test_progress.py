"""Progress is readable live on a terminal and afterwards in a log."""

from __future__ import annotations

import io

from lab.demo.checks import Check
from lab.demo.progress import ERASE_LINE, Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_lines_carry_the_time_since_the_start() -> None:
    """Steps, sayings and checks are one line each."""
    out, clock = io.StringIO(), Clock()
    progress = Progress(out, clock=clock)
    clock.now_s += 3.25
    progress.step("who reaches whom")
    progress.say("node-a is ready")
    progress.check(Check("all answer", False, "10.0.0.5 is silent"))
    assert out.getvalue().splitlines() == [
        "[   3.2 s] == who reaches whom",
        "[   3.2 s]    node-a is ready",
        "[   3.2 s]    FAIL all answer: 10.0.0.5 is silent",
    ]


def test_a_log_gets_a_few_lines_of_a_counter_and_no_control_characters() -> None:
    """Every quarter of a long count, the end of a short one."""
    out = io.StringIO()
    progress = Progress(out)
    for total in (40, 3):
        counter = progress.counter("up", total)
        for _ in range(total):
            counter.one_more()
    lines = out.getvalue().splitlines()
    assert [line.rpartition("up: ")[2] for line in lines] == ["10 of 40", "20 of 40", "30 of 40", "40 of 40", "3 of 3"]
    assert "\x1b" not in out.getvalue()
    assert "\r" not in out.getvalue()


def test_a_terminal_gets_one_line_that_is_rewritten() -> None:
    """Each count replaces the last; only the final one ends the line."""
    out = Terminal()
    counter = Progress(out).counter("up", 3)
    for _ in range(3):
        counter.one_more()
    assert out.getvalue().count(ERASE_LINE) == 3
    assert out.getvalue().count("\n") == 1


def test_a_line_that_comes_amid_a_count_starts_a_new_line() -> None:
    """What another thread says is not glued to the counter."""
    out = Terminal()
    progress = Progress(out)
    progress.counter("up", 3).one_more()
    progress.say("EC2 attached eth1")
    assert "up: 1 of 3\n[" in out.getvalue()
