"""The page in headless Chromium: it shows the state, runs nothing from outside, fits a narrow screen, and follows dark mode.

The screenshots are those of docs/page.md: with VPC_IPAMD_SCREENSHOTS=1 they are written to docs/images/.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipamd.ipamctl.page import STATIC, _digest
from ipamd.ipamctl.verb import VerbError
from ipamd.settings import NetworkConfig
from tests.fakes.node import FakeNode
from tests.page import HOSTILE, Shown, add_named, busy_node, shown

CHROMIUM = shutil.which("chromium")
IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
BROWSER_S = 120
"""For one page. Ours: seconds on an idle machine."""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: `tools/setup.sh heavy` installs it")


class Browser:
    """One run of Chromium for each question; its profile is thrown away."""

    def __init__(self, page: Shown, profile: Path) -> None:
        self._page = page
        self._profile = profile

    def run(self, *options: str, path: str = "/") -> tuple[str, str]:
        """Load the page until its script has fetched the state; standard output, and the console with what the policy refused."""
        flags = (
            "headless no-sandbox disable-gpu disable-dev-shm-usage no-first-run disable-extensions disable-background-networking "
            "disable-sync disable-component-update hide-scrollbars enable-logging=stderr v=0 virtual-time-budget=2500"
        )
        command = [str(CHROMIUM), *(f"--{flag}" for flag in flags.split()), f"--user-data-dir={self._profile}", *options]
        command.append(f"http://127.0.0.1:{self._page.port.port}{path}")
        done = subprocess.run(command, capture_output=True, text=True, timeout=BROWSER_S, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    def dom(self, *options: str) -> tuple[str, str]:
        """The document after the script has run, and the console."""
        return self.run("--dump-dom", *options)

    def screenshot(self, name: str, width: int, height: int, *options: str) -> Path:
        """A picture; kept for the docs if that was asked for."""
        kept = os.environ.get("VPC_IPAMD_SCREENSHOTS") == "1"
        path = (IMAGES if kept else self._profile) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self.run(f"--screenshot={path}", f"--window-size={width},{height}", *options)
        return path


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Shown]:
    """The page of a busy node."""
    node = busy_node(tmp_path / "node")
    with shown(node) as made:
        yield made
    node.datastore.close()


@pytest.fixture
def browser(page: Shown, tmp_path: Path) -> Browser:
    """A browser that looks at it."""
    return Browser(page, tmp_path / "profile")


def size_of(path: Path) -> tuple[int, int]:
    """Width and height of a PNG. Source: the PNG specification, IHDR."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_the_state_is_shown(browser: Browser) -> None:
    """Verdict, pool, a strip for each ENI with a cell for each slot, pods, events; and the console is empty."""
    dom, console = browser.dom()
    assert re.search(r'<p id="verdict"[^>]*>ready', dom)
    assert re.search(r"<b>10</b><span>assigned</span>", dom)
    assert dom.count('class="strip"') == 2
    assert len(re.findall(r'<i class="assigned" title', dom)) == 10
    assert len(re.findall(r'<i class="cooling" title', dom)) == 1
    assert "default/api-0" in dom
    assert re.search(r"<b>unassigned</b>", dom)
    assert "WARM_IP_TARGET=3" in dom
    assert "CONSOLE" not in console, console


def test_a_prefix_of_ipv6_is_told_in_words(tmp_path: Path) -> None:
    """No number of addresses that nobody could use, no slots, and its bar leaves the others to be seen."""
    (tmp_path / "node").mkdir()
    node = FakeNode(tmp_path / "node", network=NetworkConfig(ipv4=False, ipv6=True))
    node.bring_up()
    node.add("a")
    with shown(node) as made:
        dom, console = Browser(made, tmp_path / "profile").dom()
    node.datastore.close()
    assert re.search(r"<b>a /80</b><span>can be given</span>", dom)
    assert re.search(r'<i class="free" title="a /80 free" style="flex-grow: 64;', dom)
    assert not re.search(r"1000000|class=\"vacant\" title|\d slots", dom.partition("<script>")[0] + dom.partition("</script>")[2])
    assert "CONSOLE" not in console, console


def test_pods_without_network_are_red(browser: Browser, page: Shown) -> None:
    """A node that is ready and has five pods cut off is no yellow one; each condition says since when and what to do."""
    assert re.search(r'class="verdict good"', browser.dom()[0])
    page.node.app.pool.enis.routing.freeze(page.node.datastore.attachments()[0].eni_id, was_there=True)
    page.port.answers._last_state = (-1e9, b"")
    dom, console = browser.dom()
    assert re.search(r'class="verdict bad"[^>]*>ready, but \d+ pods? without network', dom)
    assert re.search(r"<li>ENI [^<]* gives no address[^<]*<small>since [^<]*ipamctl audit[^<]*docs/troubleshooting.md#", dom)
    assert "CONSOLE" not in console, console


def test_names_from_outside_stay_text(browser: Browser, page: Shown) -> None:
    """A pod whose name is a script and a broken image: neither becomes an element, nothing runs, nothing is fetched."""
    add_named(page.node, "evil", HOSTILE)
    dom, console = browser.dom()
    assert "&lt;script&gt;document.title='taken'" in dom
    assert "<img" not in dom
    assert dom.count("<script>") == 1
    assert _title_of(dom) == f"{page.node_name} - vpc-ipamd"
    assert "CONSOLE" not in console, console


def test_the_policy_would_stop_what_got_through(browser: Browser, page: Shown) -> None:
    """Were a script, a handler and an image in the document after all, the browser would refuse them: escaping is not all."""
    document = page.port.answers
    document.html = document.html.replace(
        b"<main>",
        b"<main><script>document.title='taken'</script><img src='http://127.0.0.1:1/x' onerror=\"document.title='taken'\">",
    )
    dom, console = browser.dom()
    assert _title_of(dom) == f"{page.node_name} - vpc-ipamd"
    assert console.count("Content Security Policy") >= 2 or console.count("violates the following") >= 2, console


def test_a_daemon_that_does_not_answer_is_said(browser: Browser, page: Shown) -> None:
    """The page does not pretend: it says that there is no answer."""

    def broken() -> bytes:
        raise VerbError("no state")

    page.port.answers.state = broken
    dom, _ = browser.dom()
    assert re.search(r'<p id="fresh"[^>]*class="late"[^>]*>no answer yet', dom)
    assert re.search(r'<p id="problem"[^>]*role="alert">[^<]+</p>', dom)
    assert _title_of(dom) == f"! {page.node_name} - vpc-ipamd"


def _scripted(page: Shown, more: str) -> None:
    """Let the page's own script do more, allowed by its policy."""
    document = page.port.answers
    script = (STATIC / "page.js").read_text()
    document.html = document.html.replace(script.encode(), (script + more).encode())
    document.policy = document.policy.replace(_digest(script), _digest(script + more))


def _title_of(dom: str) -> str:
    (title,) = re.findall(r"<title>(.*?)</title>", dom)
    return str(title)


@pytest.mark.parametrize("is_selected", [True, False])
def test_a_selection_is_kept_at_a_refresh(browser: Browser, page: Shown, is_selected: bool) -> None:
    """Somebody copies a pod's name while the page refreshes: the rows with the selection stay; without one they are made anew."""
    select = "document.getSelection().selectAllChildren(cell);" if is_selected else ""
    _scripted(
        page,
        f"""
        setTimeout(async () => {{
          const cell = byId("attachments").tBodies[0].rows[0].cells[0];
          {select}
          shownParts.clear();
          await refresh();
          document.title = cell.isConnected + " " + document.getSelection();
        }}, 1500);
        """,
    )
    title = _title_of(browser.dom()[0])
    assert title.split()[0] == ("true" if is_selected else "false")
    assert is_selected == ("default/" in title)


def test_the_clock_is_no_live_region(browser: Browser) -> None:
    """A screen reader is not read the time every three seconds; the verdict and a problem are announced."""
    dom, _ = browser.dom()
    assert re.search(r'<p id="fresh"(?![^>]*(role|aria-live))', dom)
    assert re.search(r'<p id="verdict"[^>]*role="status"', dom)


def test_pages_are_links_where_they_are_known(browser: Browser, page: Shown) -> None:
    """By --docs-url; without it they are text."""
    page.node.app.pool.enis.routing.freeze(page.node.datastore.attachments()[0].eni_id, was_there=True)
    page.docs_url = "https://example.com/vpc-ipamd"
    dom, console = browser.dom()
    assert re.search(r'<a href="https://example.com/vpc-ipamd/docs/troubleshooting.md#[^"]+"[^>]*>docs/troubleshooting.md#', dom)
    assert "CONSOLE" not in console, console


def test_it_fits_a_wide_and_a_narrow_screen(browser: Browser) -> None:
    """Nothing is wider than the screen: the document's own width is the window's."""
    wide = browser.screenshot("page-light.png", 1000, 1010)
    assert size_of(wide) == (1000, 1010)
    narrow = browser.screenshot("page-narrow.png", 500, 1250)  # Chromium's windows are not narrower than that
    assert size_of(narrow) == (500, 1250)
    for path in (wide, narrow):
        assert 5_000 < path.stat().st_size < 150_000


@pytest.mark.parametrize("width", [500, 1100])
def test_nothing_is_cut_at_the_side(browser: Browser, page: Shown, width: int) -> None:
    """Also with a long name: the script's own view of the document says so."""
    add_named(page.node, "long", "x" * 253)
    _scripted(
        page, "\nsetTimeout(() => { document.title = document.documentElement.scrollWidth + ' of ' + innerWidth; }, 1500);\n"
    )
    dom, _ = browser.dom(f"--window-size={width},900")
    scrolled, inner = map(int, re.search(r"<title>(\d+) of (\d+)</title>", dom).groups())  # type: ignore[union-attr]
    assert inner == width
    assert scrolled <= inner


def test_dark_mode_has_its_own_colours(browser: Browser) -> None:
    """The same page with the browser's preference: the picture is mostly dark."""
    dark = browser.screenshot("page-dark.png", 1000, 1010, "--blink-settings=preferredColorScheme=0")
    light = browser.screenshot("page-light-again.png", 1000, 1010) if os.environ.get("VPC_IPAMD_SCREENSHOTS") != "1" else None
    assert dark.stat().st_size < 150_000
    if light is not None:
        assert dark.read_bytes() != light.read_bytes()
