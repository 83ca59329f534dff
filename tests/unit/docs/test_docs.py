"""What the pages name exists, what is generated is up to date, and every invariant and decision has its place."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from cni_plugin import errors as plugin_errors
from ipamd import daemon
from ipamd.config import Settings, describe
from ipamd.ipamctl import main as ipamctl
from ipamd.model import errors
from ipamd.service.audit import Severity
from tools import gen_docs

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "manifests").glob("*.md")], key=lambda page: str(page)
)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
FOLDERS = "ipamd|cni_plugin|lab|bench|tests|tools|docs|manifests|proto|build"
ADRS = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))

pages = pytest.mark.parametrize("page", PAGES, ids=NAMES)


@pages
def test_named_paths_exist(page: Path) -> None:
    """Every path in code font exists, and a name after `::` is defined or written in that file."""
    for path, name in re.findall(rf"`((?:{FOLDERS})/[\w./-]*)(?:::([\w.]+))?`", page.read_text()):
        if path.startswith("build/") or path == "ipamd/cloud/data":  # made by commands, not committed
            continue
        assert (ROOT / path).exists(), path
        if name:
            last = name.rpartition(".")[2]
            assert re.search(rf"(def|class) {last}\b|^{last}\b\s*[:=]", (ROOT / path).read_text(), re.M), f"{path}::{name}"


@pages
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link leads to a file, and its anchor to a heading there."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", found.read_text(), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, target


@pages
def test_named_commands_exist(page: Path) -> None:
    """Every `make` target and `ipamctl` command in code font is one that there is."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    (choices,) = [set(action.choices) for action in ipamctl._parser()._actions if isinstance(action, argparse._SubParsersAction)]
    text = page.read_text()
    for words in re.findall(r"`make ([a-z -]+)`", text):
        assert set(words.split()) <= targets, words
    assert set(re.findall(r"`ipamctl ([a-z]+)", text)) <= choices


@pages
def test_named_settings_exist(page: Path) -> None:
    """Every variable of ours in code font is a setting, or the failpoint's."""
    known = {line.env for line in describe(Settings(), {})} | {"VPC_IPAMD_FAILPOINT"}
    named = set(re.findall(r"`((?:VPC_IPAMD|ENABLE|WARM|AWS_VPC)_[A-Z0-9_]+)(?:=[^`]*)?`", page.read_text()))
    assert named <= known


def test_settings_page_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    """docs/settings.md is what the code says."""
    assert gen_docs.main(["--check"]) == 0, capsys.readouterr().err


def test_drift_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A page that is missing or differs is stale, and writing it cures that."""
    monkeypatch.setattr(gen_docs, "ROOT", tmp_path)
    monkeypatch.setattr(gen_docs, "PAGE", tmp_path / "docs" / "settings.md")
    assert gen_docs.main(["--check"]) == 1
    assert gen_docs.main([]) == 0
    assert gen_docs.main(["--check"]) == 0
    gen_docs.PAGE.write_text(gen_docs.PAGE.read_text() + "more\n")
    assert gen_docs.main(["--check"]) == 1
    assert "make docs" in capsys.readouterr().err


def test_every_setting_is_on_the_page() -> None:
    """Each setting has one row, with its sentence."""
    page = gen_docs.render()
    for line in describe(Settings(), {}):
        assert page.count(f"| `{line.env}` |") == 1
        assert line.text in page


def test_every_invariant_has_mechanism_and_tests() -> None:
    """I1 to I14, in order, each with what holds it and what shows it."""
    text = (ROOT / "docs" / "invariants.md").read_text()
    sections = re.split(r"^## ", text, flags=re.M)[1:]
    assert [section.split(" - ")[0] for section in sections] == [f"I{number}" for number in range(1, 15)]
    for section in sections:
        held, _, shown = section.partition("- Shown by:")
        assert "- Held by:" in held, section[:40]
        assert re.search(r"`tests/[\w/]+\.py`", shown), section[:40]


def test_invariants_that_code_cites_exist() -> None:
    """No file cites a number that the page does not have."""
    for folder in ("ipamd", "cni_plugin", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            cited = {int(number) for number in re.findall(r"\bI(\d{1,2})\b", path.read_text())}
            assert cited <= set(range(1, 15)), path


def test_every_decision_is_in_the_index() -> None:
    """The index has each decision once, under its own title, and the numbers have no gap."""
    index = (ROOT / "docs" / "adr" / "README.md").read_text()
    assert [int(page.name[:4]) for page in ADRS] == list(range(1, len(ADRS) + 1))
    for page in ADRS:
        assert index.count(f"]({page.name})") == 1, page.name


@pytest.mark.parametrize("page", ADRS, ids=lambda page: page.name[:4])
def test_decisions_have_their_parts(page: Path) -> None:
    """Context, choice, rejected, consequences."""
    headings = re.findall(r"^## (.*)$", page.read_text(), re.M)
    assert [heading for heading in headings if heading in ("Context", "Choice", "Rejected", "Consequences")] == [
        "Context",
        "Choice",
        "Rejected",
        "Consequences",
    ]


def _codes(text: str) -> set[int]:
    """The CNI codes of a page: first cells of table rows, with lists ("6, 7") and ranges ("113 to 118")."""
    found: set[int] = set()
    for cell in re.findall(r"^\| (\d[\d, to]*) \|", text, re.M):
        for part in cell.split(", "):
            first, _, last = part.partition(" to ")
            found |= set(range(int(first), int(last or first) + 1))
    return found


def _error_classes(root: type[errors.IpamError]) -> list[type[errors.IpamError]]:
    return [root, *(found for child in root.__subclasses__() for found in _error_classes(child))]


def test_every_cni_code_is_in_the_troubleshooting() -> None:
    """Whoever meets a code, the daemon's or the plugin's, finds it with what to do; and none is there that nobody uses."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    ours = {kind.cni_code for kind in _error_classes(errors.IpamError) if kind.__module__ == errors.__name__}
    plugins = {value for name, value in vars(plugin_errors).items() if name.startswith("CODE_")}
    codes = text.partition("## Other codes")[2].partition("\n## ")[0]
    assert _codes(codes) == ours | plugins


def test_every_exit_status_and_severity_is_in_the_troubleshooting() -> None:
    """The daemon's exit statuses and the audit's severities have a row each."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    ends = text.partition("## The daemon ends by itself")[2].partition("\n## ")[0]
    assert {daemon.EXIT_FAILED, daemon.EXIT_SETTINGS, daemon.EXIT_DATASTORE} <= {
        int(number) for number in re.findall(r"^\| (\d)\b", ends, re.M)
    }
    findings = text.partition("## Findings of")[2]
    assert all(re.search(rf"^\| {severity}:", findings, re.M) for severity in Severity)


def test_every_lack_is_in_the_troubleshooting() -> None:
    """Whatever the daemon says that it lacks has a row."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text().partition("## `lacks` lines")[2].partition("\n## ")[0]
    source = "".join(path.read_text() for path in (ROOT / "ipamd").rglob("*.py"))
    subjects = set(re.findall(r"\.lack\(\s*\"([\w -]+)\"", source)) | set(re.findall(r"_until_done\(\"([\w-]+)\"", source))
    assert subjects
    shown = {"ec2": "EC2:", "cri": "CRI:", "duplicates": "is wired to"}
    assert [subject for subject in sorted(subjects) if shown.get(subject, f"{subject}:") not in text] == []


def test_known_failures_are_all_cited() -> None:
    """Every story and every crash test is named where its invariant, or its failure, is."""
    pages = "".join((ROOT / "docs" / name).read_text() for name in ("invariants.md", "failures.md"))
    tests = [*(ROOT / "tests" / "stories").glob("test_*.py"), *(ROOT / "tests" / "crash").glob("test_*.py")]
    assert [path.name for path in tests if f"/{path.name}`" not in pages] == []


def test_the_first_screen_says_what_to_do() -> None:
    """Who opens the README sees within a screen what this is and the two commands."""
    screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:30])
    assert "make demo" in screen
    assert "make test" in screen
