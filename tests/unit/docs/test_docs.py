"""Everything that the pages name exists, generated files are up to date, and every invariant and decision has its place."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from cni_plugin import errors as plugin_errors
from ipamd import daemon
from ipamd.ipamctl import main as ipamctl
from ipamd.model import errors
from ipamd.model.finding_codes import Severity
from ipamd.settings import Settings, describe
from ipamd.settings.upstream import UPSTREAM
from lab.cli import main as cli
from lab.vpc.fault_spec import parse as parse_faults
from tests.table import each_of
from tools import gen_docs

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("manifests/*.md"), *ROOT.glob("lab/*.md")],
    key=lambda page: str(page),
)
FOLDERS = "ipamd|cni_plugin|lab|bench|fuzz|tests|tools|docs|manifests|proto|build"
ADRS = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))

on_every_page = each_of(PAGES, name=str)


def test_the_changelog_is_in_the_form_of_keep_a_changelog() -> None:
    """The first section is for new lines, the others are versions with a date; each has the form's headings only."""
    text = (ROOT / "CHANGELOG.md").read_text()
    sections = dict(re.findall(r"^## (.*)\n((?:(?!^## ).*\n)*)", text, re.M))
    first, *versions = sections
    assert first == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", version) for version in versions)
    for title, section in sections.items():
        headings = re.findall(r"^### (.*)$", section, re.M)
        assert headings, title
        assert set(headings) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}, title


@on_every_page
def test_named_paths_exist(page: Path) -> None:
    """Every path in code font exists, and a name after `::` is defined or written in that file."""
    for path, name in re.findall(rf"`((?:{FOLDERS})/[\w./-]*)(?:::([\w.]+))?`", page.read_text()):
        if path.startswith("build/") or path in (
            "ipamd/cloud/data",
            "ipamd/cloud/inventory_data",
        ):  # made by commands, not committed
            continue
        assert (ROOT / path).exists(), path
        if name:
            last = name.rpartition(".")[2]
            assert re.search(rf"(def|class) {last}\b|^{last}\b\s*[:=]", (ROOT / path).read_text(), re.M), f"{path}::{name}"


@on_every_page
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


def _subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (found,) = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(found)


def _options(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings}


def _lab_commands(chunks: Iterable[str]) -> Iterator[list[str]]:
    """The words after each `vpc-lab` of a chunk: to the end of its code font or shell command, or to the explanation beside
    it."""
    for chunk in chunks:
        for command in re.findall(
            r"\bvpc-lab (?=[a-z-])((?:'[^']*'|(?!  | \|\| | && )[^`;#'])+)", re.sub(r"\n\s*", " ", chunk.strip())
        ):
            yield shlex.split(command)


def _positional_choices(parser: argparse.ArgumentParser) -> Iterator[tuple[int, set[str]]]:
    positionals = [action for action in parser._actions if not action.option_strings]
    for index, action in enumerate(positionals):
        if action.choices is not None:
            yield index, {str(choice) for choice in action.choices}


def _check_lab_command(words: list[str]) -> None:
    """Subcommand, options, and where an argument is one of a few, the argument ("kill|start" names two)."""
    if words[0].startswith("-"):
        assert set(words) <= _options(cli._parser()), words
        return
    choices = _subcommands(cli._parser())
    assert words[0] in choices, f"vpc-lab {words[0]}"
    parser = choices[words[0]]
    words = words[1 : words.index("--") if "--" in words else None]
    options = {word.strip("[]").partition("=")[0] for word in words if word.strip("[]").startswith("-")}
    assert options <= _options(parser), words
    arguments = [word for word in words if not word.startswith(("-", "["))]
    for index, allowed in _positional_choices(parser):
        if index < len(arguments):
            assert set(arguments[index].split("|")) <= allowed, words


@on_every_page
def test_named_commands_exist(page: Path) -> None:
    """Every `make` target and `ipamctl` command in code font, and every `vpc-lab` command with its options, is one that there
    is."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    text = page.read_text()
    for words in re.findall(r"`make ([a-z -]+)`", text):
        assert set(words.split()) <= targets, words
    commands = set(_subcommands(ipamctl.make_parser()))
    named = set(re.findall(r"`ipamctl ([a-z][a-z-]*)|^ {4,}.*-- ipamctl ([a-z][a-z-]*)", text, re.M))
    assert {first or second for first, second in named} <= commands
    for command in _lab_commands(_code(text)):
        _check_lab_command(command)


def _code(text: str) -> Iterator[str]:
    """What is in code font, and the lines of code blocks."""
    prose = []
    for line in text.splitlines():
        if line.startswith("    "):
            yield line
        else:
            prose.append(line)
    yield from re.findall(r"`[^`]+`", "\n".join(prose))


def test_lab_commands_are_found() -> None:
    """The test above finds what it looks for, and a wrong command or option fails it."""
    text = "text `vpc-lab up --daemon --env\nK=V`\n\n    vpc-lab pods node-a --run 3      three\n    vpc-lab exec node-a -- ip rule\n"
    assert list(_lab_commands(_code(text))) == [
        ["pods", "node-a", "--run", "3"],
        ["exec", "node-a", "--", "ip", "rule"],
        ["up", "--daemon", "--env", "K=V"],
    ]
    for wrong in (["fly"], ["--fly"], ["up", "--wings"]):
        with pytest.raises(AssertionError):
            _check_lab_command(wrong)


def test_commands_of_the_makefile_exist() -> None:
    """Every `vpc-lab` command in a recipe is one that there is: make would say so only to who runs it."""
    found = list(_lab_commands(line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("\t")))
    assert ["demo"] in found
    for words in found:
        _check_lab_command(words)


@on_every_page
def test_named_faults_are_faults(page: Path) -> None:
    """Every example of `vpc-lab faults` is one that the lab takes."""
    for spec in re.findall(r"vpc-lab faults '([^']+)'", page.read_text()):
        parse_faults(json.loads(spec))


@on_every_page
def test_named_settings_exist(page: Path) -> None:
    """Every variable of ours in code font is a setting, or the failpoint's."""
    known = {line.env for line in describe(Settings(), {})} | {"VPC_IPAMD_FAILPOINT"} | {row.name for row in UPSTREAM}
    named = set(re.findall(r"`((?:VPC_IPAMD|ENABLE|WARM|AWS_VPC)_[A-Z0-9_]+)(?:=[^`]*)?`", _without_old_names(page)))
    assert named <= known


def test_generated_pages_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    """Settings and metrics are what the code says, and the picture is what its text source says."""
    assert gen_docs.main(["--check"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("name", gen_docs.PAGES)
def test_drift_is_noticed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A page that is missing or differs is stale, and writing it cures that."""
    monkeypatch.setattr(gen_docs, "ROOT", tmp_path)
    assert gen_docs.main(["--check"]) == 1
    assert gen_docs.main([]) == 0
    assert gen_docs.main(["--check"]) == 0
    page = tmp_path / name
    page.write_text(page.read_text() + "more\n")
    capsys.readouterr()
    assert gen_docs.main(["--check"]) == 1
    assert capsys.readouterr().err == f"{name} is stale: run `make docs`\n"


def test_every_setting_is_on_the_page() -> None:
    """Each setting has one row, with its sentence."""
    page = gen_docs.settings_page()
    for line in describe(Settings(), {}):
        assert page.count(f"| `{line.env}` |") == 1
        assert line.text in page


INVARIANTS = range(1, 22)
"""19 is that of network policy, which is not built."""

METRIC = r"\b(?:awscni|ipamd)_[a-z0-9_]+\b"


def test_every_metric_is_on_the_page() -> None:
    """Each metric that the code names has one row, under the name that a scrape has."""
    kinds = r"counter|counter \(untyped\)|gauge|histogram|summary"
    found = re.findall(rf"^\| `([\w]+)` \| (?:{kinds}) \|", gen_docs.metrics_page(), re.M)
    rows = [name for name in found if not name.startswith("process_")]  # the library names them
    assert len(rows) == len(set(rows))
    sources = [*sorted((ROOT / "ipamd" / "metrics").rglob("*.py")), ROOT / "ipamd" / "inventory" / "metrics.py"]
    named = set(re.findall(rf'"({METRIC})"', "".join(path.read_text() for path in sources)))
    assert {name.removesuffix("_total").removesuffix("_info") for name in rows} == named


@cache
def metric_rows() -> set[str]:
    """The metrics that have a row in the generated page."""
    return set(re.findall(r"^\| `([\w]+)` \|", gen_docs.metrics_page(), re.M))


@on_every_page
def test_named_metrics_exist(page: Path) -> None:
    """Every metric in code font has a row, so that no alert waits for what never comes."""
    rows = metric_rows()
    named = {name for code in re.findall(r"`([^`\n]+)`", _without_old_names(page)) for name in re.findall(METRIC, code)}
    assert {re.sub(r"_(bucket|sum)$", "", name) for name in named if not name.endswith("_")} <= rows


def _without_old_names(page: Path) -> str:
    """A page's text; of the changelog's table of renamed names only the new ones."""
    head, renamed, table = page.read_text().partition("| Kind | Old | New |\n")
    return head + renamed + re.sub(r"^\| [^|\n]+ \| [^|\n]+ \|", "|", table, flags=re.M)


def test_every_invariant_has_mechanism_and_tests() -> None:
    """In order, each with what holds it and what shows it."""
    rules = (ROOT / "docs" / "invariants.md").read_text().partition("\n## The rules\n")[2]
    sections = re.split(r"^### ", rules, flags=re.M)[1:]
    assert [section.split(" - ")[0] for section in sections] == [f"I{number}" for number in INVARIANTS]
    for section in sections:
        held, _, shown = section.partition("- Shown by:")
        assert "- Held by:" in held, section[:40]
        assert re.search(r"`tests/[\w/]+\.py`", shown), section[:40]


def test_invariants_that_code_cites_exist() -> None:
    """No file cites a number that the page does not have."""
    for folder in ("ipamd", "cni_plugin", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            cited = {int(number) for number in re.findall(r"\bI(\d{1,2})\b", path.read_text())}
            assert cited <= set(INVARIANTS), path


def test_every_decision_is_in_the_index() -> None:
    """The index has each number once, ascending: with its page, or with where else the decision stands now."""
    index = (ROOT / "docs" / "adr" / "README.md").read_text()
    numbers = re.findall(r"^\| (?:\[(\d{4})\]\((\d{4}-[\w.-]+)\)|(\d{4})) \| ", index, re.M)
    in_order = [int(paged or bare) for paged, _, bare in numbers]
    assert in_order == sorted(set(in_order))
    assert [page for _, page, _ in numbers if page] == [page.name for page in ADRS]


@each_of(ADRS, name=str)
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


def test_messages_of_the_troubleshooting_are_said() -> None:
    """Of every message that the tables of code 11 and of *degraded* quote, three words in a row (or all, of shorter ones) are in the
    code."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    code = " ".join(path.read_text() for folder in ("ipamd", "cni_plugin") for path in (ROOT / folder).rglob("*.py"))
    rows = []
    for title in ("A pod does not start", "`degraded` lines"):
        rows += re.findall(r"^\| `([^|]+)` \|", text.partition(f"\n## {title}")[2].partition("\n## ")[0], re.M)
    assert len(rows) > 15
    for row in rows:
        for message in re.split("`(?:,| or) `", row):
            words = re.sub(r"\bcause:|\bnext:|\.\.\.|\bN\b|\d+", " ", message).split()
            spans = [" ".join(words[at : at + 3]) for at in range(max(len(words) - 2, 1))]
            assert any(span.rstrip(":") in code for span in spans), message


def test_every_exit_status_and_severity_is_in_the_troubleshooting() -> None:
    """The daemon's exit statuses and the audit's severities have a row each."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    ends = text.partition("## The daemon ends by itself")[2].partition("\n## ")[0]
    assert {daemon.EXIT_FAILED, daemon.EXIT_SETTINGS, daemon.EXIT_DATASTORE} <= {
        int(number) for number in re.findall(r"^\| (\d)\b", ends, re.M)
    }
    findings = text.partition("## Findings of")[2]
    assert all(re.search(rf"^\| {severity}:", findings, re.M) for severity in Severity)


def test_every_condition_is_in_the_troubleshooting() -> None:
    """Every condition that the daemon reports under *degraded* has a row."""
    text = (ROOT / "docs" / "troubleshooting.md").read_text().partition("## `degraded` lines")[2].partition("\n## ")[0]
    source = "".join(path.read_text() for path in (ROOT / "ipamd").rglob("*.py"))
    said = r"(?:health\.(?:report|claim)\(|\b_until_done\(|\bLoop\(|__init__\(.*subject=)\s*\"([\w -]+)\""
    subjects = set(re.findall(said, source))
    subjects |= set(re.findall(r"^CONDITION = \"([\w -]+)\"", source, re.M))
    assert {"ec2", "cri", "spool", "security groups"} <= subjects
    shown = {"ec2": "EC2:", "cri": "CRI:", "duplicate addresses": "is wired to"}
    assert [subject for subject in sorted(subjects) if shown.get(subject, f"{subject}:") not in text] == []


def test_known_failures_are_all_cited() -> None:
    """Every story and every crash test is named where its invariant, or its failure, is."""
    page = (ROOT / "docs" / "invariants.md").read_text()
    tests = [*(ROOT / "tests" / "stories").glob("test_*.py"), *(ROOT / "tests" / "crash").glob("test_*.py")]
    assert [path.name for path in tests if f"/{path.name}`" not in page] == []


def test_the_first_screen_says_what_to_do() -> None:
    """Who opens the README sees within a screen what this is and the two commands."""
    screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:30])
    assert "make demo" in screen
    assert "make test" in screen


def test_the_first_paragraph_says_how_mature_this_is() -> None:
    """Nobody reads on in the belief that this runs in production."""
    first = (ROOT / "README.md").read_text().split("\n\n")[1]
    for claim in ("0.1.0", "not released", "real EKS node", "IPv4 or IPv6, not both"):
        assert claim in " ".join(first.split())
