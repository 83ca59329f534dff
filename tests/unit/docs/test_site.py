"""The site that `make site` makes: each page is in its navigation once, and what pages link goes with them. Needs no MkDocs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from tests.task_pages import ROOT
from tools import static_site as site

PAGES = tuple(site.pages_of(site.navigation()))


def test_every_page_is_in_the_navigation_once() -> None:
    """All of docs/, and no page twice."""
    assert len(set(PAGES)) == len(PAGES)
    docs = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    assert docs <= set(PAGES), f"add to {site.NAVIGATION.name}: {sorted(docs - set(PAGES))}"
    assert all((ROOT / page).is_file() for page in PAGES)


def test_titles_are_different() -> None:
    """Of entries beside one another, or a reader would not know which."""

    def check(entries: list[object]) -> None:
        titles = [title for entry in entries if isinstance(entry, dict) for title in entry]
        assert len(set(titles)) == len(titles)
        for entry in entries:
            if isinstance(entry, dict):
                for value in entry.values():
                    if isinstance(value, list):
                        check(value)

    check(site.navigation())


def test_every_page_that_a_page_links_is_in_the_navigation() -> None:
    """Else the strict build would fail where MkDocs is."""
    for page in PAGES:
        for target in site.LINK.findall((ROOT / page).read_text()):
            if target.endswith(".md") and "://" not in target:
                path = (ROOT / page).parent.joinpath(target).resolve()
                assert str(path.relative_to(ROOT)) in PAGES, f"{page} links {target}"


@pytest.fixture
def laid_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The copies for MkDocs."""
    monkeypatch.setattr(site, "PAGES", tmp_path / "pages")
    site.lay_out()
    return tmp_path / "pages"


def test_pages_are_copied_with_what_they_show(laid_out: Path) -> None:
    """Under the same names, and the sources are not changed."""
    assert {str(path.relative_to(laid_out)) for path in laid_out.rglob("*.md")} == set(PAGES)
    assert (laid_out / "docs/picture/architecture.svg").read_bytes() == (ROOT / "docs/picture/architecture.svg").read_bytes()
    assert all((laid_out / name).is_file() for page in PAGES for name in site.other_files(page))
    assert not list(laid_out.rglob("*.py"))


def test_lists_are_indented_for_python_markdown() -> None:
    """Four columns whatever the marker's width, a blank line before a list and between its long items; code outside of lists stays."""
    text = "A:\n- one\n  more\n- two\n\n1. first:\n\n       $ command\n\n   and on\n2. second\n\nB\n\n    code\n"
    assert site.laid_out(text) == (
        "A:\n\n- one\n    more\n- two\n\n1. first:\n\n        $ command\n\n    and on\n\n2. second\n\nB\n\n    code\n"
    )


def test_the_build_is_strict_and_fetches_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every kind of link is checked, a failed build fails the command, and readers' browsers load nothing from elsewhere."""
    ran: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        ran.append(command)
        return subprocess.CompletedProcess(command, 1)

    for name, path in {"BUILD": tmp_path, "PAGES": tmp_path / "pages"}.items():
        monkeypatch.setattr(site, name, path)
    monkeypatch.setattr(site.subprocess, "run", run)
    assert site.main() == 1
    assert "--strict" in ran[0]
    plain = (tmp_path / "mkdocs.yml").read_text().replace("!!python/object/apply:pymdownx.slugs.slugify ", "")
    configuration = yaml.safe_load(plain)
    assert set(configuration["validation"]["links"].values()) == {"warn"}
    assert set(configuration["validation"]["links"]) == {"not_found", "anchors", "absolute_links", "unrecognized_links"}
    assert (configuration["theme"]["font"], configuration["plugins"]) == (False, ["search"])
    assert tuple(site.pages_of(configuration["nav"])) == PAGES
