"""The page has no violation of axe-core, in each of its states, light and dark, on a narrow and a wide screen."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ipamd.ipamctl.verb import AwayError
from ipamd.model.errors import CloudError, IpamError
from tests.fakes.node import FakeNode
from tests.heavy.devtools import DevTools, Tab
from tests.heavy.tools import AXE, needs
from tests.page import HOSTILE, Shown, add_named, busy_node, shown

pytestmark = needs("chromium", "axe-core")

NARROW, WIDE = 320, 1280
"""Widths in pixels. 320 is the narrowest screen on which WCAG 2.2 asks for content without scrolling sideways (1.4.10, Reflow)."""


class Violation(NamedTuple):
    """A rule of axe-core that elements of the page break."""

    rule: str
    elements: tuple[str, ...]


class State(NamedTuple):
    """A state of the page."""

    make: Callable[[Path], FakeNode]
    is_hung: bool = False


def empty_node(folder: Path) -> FakeNode:
    """A node that has no pods yet, and serves."""
    folder.mkdir()
    node = FakeNode(folder)
    node.bring_up()
    node.health.mark_ready()
    return node


def troubled_node(folder: Path) -> FakeNode:
    """A node with pods without network, a frozen ENI, refusals of EC2, a full pool, and a pod with a name that is no pod's."""
    node = busy_node(folder)
    add_named(node, "ee" * 32, HOSTILE)
    node.enis.routing.freeze(node.datastore.attachments()[0].eni_id, was_there=True)
    node.ec2.left_count = node.ec2.left_prefix_count = 0
    refused = CloudError("AssignPrivateIpAddresses failed: InsufficientFreeAddressesInSubnet")
    node.ec2.fail = {call: [refused] * 20 for call in ("assign_addresses", "create_eni", "describe_enis")}
    for number in range(12):
        try:
            node.add(f"{number:02d}" * 32, deadline_s=0.0)
        except IpamError:
            node.pool.cycle()
    return node


STATES = {
    "healthy": State(busy_node),
    "troubled": State(troubled_node),
    "empty": State(empty_node),
    "hung": State(busy_node, is_hung=True),
}


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevTools]:
    """One browser for all pages."""
    with DevTools(str(shutil.which("chromium")), tmp_path_factory.mktemp("profile")) as browser:
        yield browser


def hang(page: Shown) -> None:
    """Let the daemon behind the page answer nothing any more."""

    def unanswered() -> bytes:
        raise AwayError("no answer", kind="hung")

    page.port.answers.state = unanswered
    page.port.answers._last_state = (-1e9, b"")


@pytest.fixture
def page(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shown]:
    """The page in the state that the test names; by default of a healthy node."""
    state = STATES[getattr(request, "param", "healthy")]
    node = state.make(tmp_path / "node")
    with shown(node) as made:
        if state.is_hung:
            hang(made)
        yield made
    node.datastore.close()


def url_of(page: Shown) -> str:
    """Where the page is."""
    return f"http://127.0.0.1:{page.port.port}/"


def wait_for_answer(tab: Tab) -> None:
    """Wait until the page's script has shown the first answer of the daemon, or that there is none."""
    tab.wait_until("document.getElementById('fresh') && document.getElementById('fresh').textContent !== 'loading'")


def violations(tab: Tab) -> list[Violation]:
    """Run axe-core in the page: its rules for WCAG 2.0 to 2.2, and its best practices; also those that it cannot decide."""
    if not tab.evaluate("typeof axe !== 'undefined'"):
        tab.evaluate(AXE.read_text() + "\n;true")
    found = tab.evaluate(
        "axe.run(document, {resultTypes: ['violations', 'incomplete']}).then(results => [...results.violations, ...results.incomplete]"
        ".map(rule => [rule.id, rule.nodes.map(node => node.target.join(' ') + ': ' + node.failureSummary)]))"
    )
    return [Violation(rule, tuple(elements)) for rule, elements in found]


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, WIDE])
@pytest.mark.parametrize("page", STATES, indirect=True)
def test_no_rule_is_broken(chromium: DevTools, page: Shown, width: int, is_dark: bool) -> None:
    """In each state of the page."""
    with chromium.tab(url_of(page), width=width, is_dark=is_dark) as tab:
        wait_for_answer(tab)
        assert tab.evaluate("innerWidth") == width
        assert tab.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") is is_dark
        assert violations(tab) == []


def test_no_rule_is_broken_once_the_daemon_stops_answering(chromium: DevTools, page: Shown) -> None:
    """The last answer stays on the page, with the alert above it."""
    with chromium.tab(url_of(page), width=WIDE) as tab:
        wait_for_answer(tab)
        hang(page)
        tab.wait_until("!document.getElementById('problem').hidden")
        assert tab.evaluate("document.getElementById('attachments').rows.length") > 1
        assert violations(tab) == []


def test_no_rule_is_broken_by_links(chromium: DevTools, page: Shown) -> None:
    """With --docs-url the conditions have links."""
    page.docs_url = "https://example.com/vpc-ipamd"
    page.node.enis.routing.freeze(page.node.datastore.attachments()[0].eni_id, was_there=True)
    with chromium.tab(url_of(page), width=WIDE) as tab:
        wait_for_answer(tab)
        tab.wait_until("document.querySelector('#lacks a')")
        assert violations(tab) == []


@pytest.mark.parametrize("page", STATES, indirect=True)
def test_nothing_is_wider_than_a_narrow_screen(chromium: DevTools, page: Shown) -> None:
    """Nobody has to scroll sideways."""
    with chromium.tab(url_of(page), width=NARROW) as tab:
        wait_for_answer(tab)
        assert tab.evaluate("document.documentElement.scrollWidth") <= NARROW


PLANTED = {
    "image-alt": "document.querySelector('main').insertAdjacentHTML('beforeend', '<img>')",
    "color-contrast": "document.querySelector('h2').style.color = '#eeeeec'",
    "label": "document.querySelector('label').replaceWith(document.getElementById('filter'))"
    "; document.getElementById('filter').removeAttribute('placeholder')",
    "html-has-lang": "document.documentElement.removeAttribute('lang')",
}
"""Rule -> what breaks it."""


@pytest.mark.parametrize("rule", PLANTED)
def test_a_broken_rule_is_named(chromium: DevTools, page: Shown, rule: str) -> None:
    """These tests can fail: what is planted is found, and nothing else."""
    with chromium.tab(url_of(page), width=WIDE) as tab:
        wait_for_answer(tab)
        tab.evaluate(PLANTED[rule])
        assert [violation.rule for violation in violations(tab)] == [rule]


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_a_colour_of_the_style_sheet_is_judged(chromium: DevTools, page: Shown, is_dark: bool) -> None:
    """The colours of dark mode are judged apart from those of light mode: a grey that is too near to the background."""
    with chromium.tab(url_of(page), width=WIDE, is_dark=is_dark) as tab:
        wait_for_answer(tab)
        tab.evaluate(f"document.documentElement.style.setProperty('--soft', '{'#33383d' if is_dark else '#c8ccd0'}')")
        assert "color-contrast" in [violation.rule for violation in violations(tab)]
