"""The architecture page and the picture name existing files, and the README links every page."""

from __future__ import annotations

import ast
import re
import tomllib
from html import escape
from pathlib import Path

from tools import gen_docs

ROOT = Path(__file__).resolve().parents[3]


def test_files_of_the_architecture_exist() -> None:
    """The tree of rooms and the files of each path name files that are there."""
    sections = (("architecture.md", "Rooms"), ("life.md", "The files of each path"))
    rooms, paths = (
        (ROOT / "docs" / page).read_text().partition(f"\n## {title}\n")[2].partition("\n## ")[0] for page, title in sections
    )
    tree = re.findall(r"^ {6}([a-z_./]+)(?=  )", rooms, re.M)
    assert {"daemon.py", "sandbox/", "eni/", "probe/"} <= set(tree)
    assert [name for name in tree if not (ROOT / "ipamd" / name).exists()] == []
    assert {f"{path.name}/" for path in (ROOT / "ipamd").iterdir() if (path / "__init__.py").exists()} - {"pb/"} <= set(tree)
    named = re.findall(r"\b(?:ipamd|cni_plugin)/[\w/]+\.py", paths)
    assert {"ipamd/rpc/cni.py", "ipamd/model/plan.py"} <= set(named)
    assert [name for name in named if not (ROOT / name).exists()] == []
    names = {path.name for folder in ("ipamd", "cni_plugin") for path in (ROOT / folder).rglob("*.py")}
    assert set(re.findall(r"\b\w+\.py\b", paths)) <= names


def _rows(heading: str) -> list[list[str]]:
    """Cells of each row of the table under a heading row of the life of the process."""
    text = (ROOT / "docs" / "life.md").read_text()
    table = text.partition(f"\n| {heading}")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def _classes(pattern: str) -> dict[str, str]:
    """Source of each class of the daemon that matches, by its name."""
    beside = {"ipamctl", "probe", "sweeper", "inventory", "pb"}
    files = [path for path in (ROOT / "ipamd").rglob("*.py") if path.relative_to(ROOT / "ipamd").parts[0] not in beside]
    texts = {
        node.name: ast.unparse(node)
        for path in files
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    return {name: text for name, text in texts.items() if re.search(pattern, text)}


def test_every_thread_and_lock_stands_in_its_table() -> None:
    """By name, with the class that has it; and nothing else does."""
    rows = _rows("Thread | In |")
    named = {(name.strip("`"), owner.strip("`")) for name, owner, _ in rows if name.startswith("`")}
    loops = r"\b(?:threading\.Thread\(target=self\._run, name=|Loop\()'?(\w[\w ]*)"
    found = {(name, owner) for owner, text in _classes(loops).items() for name in re.findall(loops, text)}
    (start,) = re.findall(
        r'threading\.Thread\(target=_start_up, args=\[life\], name="([\w-]+)"', (ROOT / "ipamd" / "daemon.py").read_text()
    )
    assert named == found | {(start, "Lifecycle")}
    assert len(rows) == len(found) + 4, "main, the start-up, rpc, and the timer besides"
    failures = _rows("Thread | Cannot be made |")
    failing = {thread.strip("` ") for names, *_ in failures for thread in names.split(", ")}
    assert {name.strip("`") for name, *_ in rows} <= failing, "what happens when each cannot be made, or ends"
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [test for *_, test in failures if f"def {test.strip('`')}(" not in sources] == []
    locks = {name for cell, _ in _rows("Lock of |") for name in re.findall(r"`(\w+)`", cell)}
    assert locks == set(_classes(r"threading\.(?:R?Lock|Condition|(?:Bounded)?Semaphore)\("))


def test_room_lists_are_complete() -> None:
    """Every module of a room stands in the tree of the architecture."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    rooms = ("policy", "sandbox", "eni", "pool", "host", "migration", "report", "core")
    for room in (*rooms, "sandbox/legs", "eni/legs", "migration/legs", "report/legs"):
        (lines,) = re.findall(rf"^ {{6}}{room}/ .*\n((?: {{28}}.*\n)+)", text, re.M)
        named = set(re.findall(r"\b[a-z_0-9]+\b", lines))
        assert {path.stem for path in (ROOT / "ipamd" / room).glob("*.py")} - {"__init__"} == named, room


def test_the_picture_shows_every_word_of_its_source() -> None:
    """Whatever the text source names is in the SVG, and every box is inside the picture."""
    source = tomllib.loads(gen_docs.PICTURE.read_text())
    drawn = gen_docs.picture_page()
    for item in [*source["box"], *source["arrow"]]:
        for line in item["text"]:
            assert all(f">{escape(words)}</text>" in drawn for words in re.split(r" {2,}", line) if words), line
    width, height = source["size"]
    assert all(box["at"][0] + box["size"][0] <= width and box["at"][1] + box["size"][1] <= height for box in source["box"])


def test_every_page_is_reachable_from_the_readme() -> None:
    """The README links every page of docs, but the single decisions, which have an index."""
    text = (ROOT / "README.md").read_text()
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "docs" / "adr" / "README.md"]
    assert [page.name for page in pages if f"]({page.relative_to(ROOT)}" not in text] == []
