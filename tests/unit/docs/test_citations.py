"""Every citation can be opened by a reader: nothing points at working notes outside the repository.

A number, a name or a rule cites a file of this repository, an ADR, a public project's file or a public document. Notes
of the people who wrote the code are none of these.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SKIPPED = {".git", ".venv", "build", "pb", "__pycache__", ".mypy_cache", ".ruff_cache", ".hypothesis", ".import_linter_cache"}

NOTES = {
    "a section of design notes": r"\bdesign(?:\.md)?(?: section)? \d|\bdesign section\b|\bdesign\.md\b",
    "notes about amazon-vpc-cni-k8s": r"\bupstream[ _]reference\b|\bupstream weakness\b|\bweakness \d",
    "other working notes": r"\b(?:house|style|aws_facts|plugin_binary)\.md\b|\baws_facts\b|\.\./shared\b|/work/shared\b",
    "a name that only the authors know (say amazon-vpc-cni-k8s)": r"\bincumbent(?!-tests\b)",
}
"""What a citation must not name -> how it looks."""

SECTION = re.compile(r"docs/(architecture|life|pool|datastore)\.md, \"?([A-Z][\w' ]*\w)")
ADR = re.compile(r"docs/adr/(\d{4})(?![\d-])")
FOREIGN = re.compile(r"amazon-vpc-cni-k8s\s+((?:pkg|cmd|misc|utils)/[\w./-]+?)(?=[,;:.)\s\"`]*(?:\s|$|[\"`)]))")
SUFFIXES = (".go", ".txt", ".md")


def _files() -> list[Path]:
    """Tracked files; all files but made ones where there is no git (the image, an sdist)."""
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return [path for path in ROOT.rglob("*") if path.is_file() and not SKIPPED & set(path.relative_to(ROOT).parts)]
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def _texts() -> Iterator[tuple[str, str]]:
    """Name and text of every text file but this one."""
    for path in sorted(_files()):
        if path == Path(__file__).resolve():
            continue
        try:
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


@pytest.mark.parametrize("kind", NOTES)
def test_nothing_cites_notes_outside_the_repository(kind: str) -> None:
    """Each match is reported with file and line."""
    pattern = re.compile(NOTES[kind], re.I)
    found = [
        f"{name}:{_line(text, match.start())}: {match.group()!r} is {kind}"
        for name, text in _texts()
        for match in pattern.finditer(text)
    ]
    assert not found, "cite what a reader can open:\n" + "\n".join(found)


def test_cited_sections_of_the_architecture_exist() -> None:
    """`docs/pool.md, The pool` names a heading of that page."""
    found = [
        f"{name}:{_line(text, match.start())}: docs/{page}.md has no section {section!r}"
        for name, text in _texts()
        for match in SECTION.finditer(text)
        for page, section in [match.groups()]
        if section not in re.findall(r"^##+ (.*)$", (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"), re.M)
    ]
    assert not found, "\n".join(found)


def test_cited_decisions_exist() -> None:
    """`docs/adr/0004` is the beginning of a file's name."""
    numbers = {path.name[:4] for path in (ROOT / "docs" / "adr").glob("[0-9]*.md")}
    found = [
        f"{name}:{_line(text, match.start())}: there is no {match.group()}"
        for name, text in _texts()
        for match in ADR.finditer(text)
        if match.group(1) not in numbers
    ]
    assert not found, "\n".join(found)


def test_cited_files_of_amazon_vpc_cni_k8s_name_a_file() -> None:
    """A folder or a line number is no citation: the file, and the function or constant in it."""
    found = [
        f"{name}:{_line(text, match.start())}: {match.group(1)} is no file"
        for name, text in _texts()
        for match in FOREIGN.finditer(text)
        if not match.group(1).endswith(SUFFIXES)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("Guards I1 (design 4).", ["a section of design notes"]),
        ("the socket, design section 5", ["a section of design notes"]),
        ("Design 8: what `ip` shows", ["a section of design notes"]),
        ("Source: upstream_reference 3.2.", ["notes about amazon-vpc-cni-k8s"]),
        ("meets it (upstream weakness 61)", ["notes about amazon-vpc-cni-k8s"]),
        ("see house.md 3", ["other working notes"]),
        ("the incumbent's tables", ["a name that only the authors know (say amazon-vpc-cni-k8s)"]),
        ("a design that decides; designed in 2 parts; the upstream router; RFC 9113, 6.5", []),
    ],
)
def test_the_patterns_find_what_they_look_for(text: str, kinds: list[str]) -> None:
    """Whoever changes a pattern sees what it must find, and what it must leave alone."""
    assert [kind for kind, pattern in NOTES.items() if re.search(pattern, text, re.I)] == kinds
