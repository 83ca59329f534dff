"""Make a static site with search from the repository's pages: build/site/html. Run by `make site`.

The pages are not changed. Copies of them are adapted for MkDocs below build/site/pages, under the same names, so that their links
still work. MkDocs with Material for MkDocs builds the site strictly: a link or an anchor that leads nowhere is an error. Both programs
are in their own virtual environment, which `make site` makes, because nothing else of the project needs them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
NAVIGATION = ROOT / "tools" / "site_navigation.yml"
BUILD = ROOT / "build" / "site"
PAGES, HTML = BUILD / "pages", BUILD / "html"
MKDOCS = BUILD / "venv" / "bin" / "mkdocs"

CONFIGURATION = """\
site_name: vpc-ipamd
docs_dir: pages
site_dir: html
use_directory_urls: false  # a page keeps its name, and needs no server that adds index.html
theme:
  name: material
  font: false  # nothing is fetched from elsewhere
  features: [navigation.indexes, navigation.top, search.suggest, search.highlight, content.code.copy]
  palette:
    - {media: "(prefers-color-scheme: light)", scheme: default, toggle: {icon: material/weather-night, name: dark}}
    - {media: "(prefers-color-scheme: dark)", scheme: slate, toggle: {icon: material/weather-sunny, name: light}}
plugins: [search]
markdown_extensions:
  - tables
  - pymdownx.superfences
  - toc: {permalink: true, slugify: !!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}}
validation:
  nav: {omitted_files: warn, not_found: warn, absolute_links: warn}
  links: {not_found: warn, anchors: warn, absolute_links: warn, unrecognized_links: warn}
"""
"""The configuration of MkDocs. It makes anchors in the same way as GitHub, because the pages' links are written for GitHub.

Source: https://www.mkdocs.org/user-guide/configuration/.
"""

LINK = re.compile(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)")

ITEM = re.compile(r"^(\d+\. |[-*] )")

INDENT = 4
"""Spaces before the further lines of a list item, as Python-Markdown wants them. The pages follow CommonMark instead: there these
lines have as many spaces as the item's marker has characters."""


def navigation() -> list[Any]:
    """Return the navigation as MkDocs takes it: titles with pages or with further entries. Paths are relative to the repository."""
    entries: list[Any] = yaml.safe_load(NAVIGATION.read_text())
    return entries


def pages_of(entry: Any) -> Iterator[str]:
    """Yield every page of an entry of the navigation, in order."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for value in entry.values():
            yield from pages_of(value)
    else:
        for element in entry:
            yield from pages_of(element)


def other_files(page: str) -> Iterator[str]:
    """Yield the paths in the repository of those files that a page links or shows and that are no pages, such as pictures."""
    for target in LINK.findall((ROOT / page).read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path = (ROOT / page).parent.joinpath(target).resolve()
        if path.is_file() and path.suffix != ".md":
            yield str(path.relative_to(ROOT))


def laid_out(text: str) -> str:
    """Return a page adapted for Python-Markdown: a blank line before each list, and further lines of an item indented by INDENT."""
    lines: list[str] = []
    width = 0  # characters in the marker of the present list item; 0 outside of lists
    has_paragraphs = False  # whether the present item has several; then the next item needs a blank line before it too
    for line in text.split("\n"):
        item = ITEM.match(line)
        if item:
            if lines and lines[-1].strip() and (not width or has_paragraphs):
                lines.append("")
            width, has_paragraphs = len(item[0]), False
        elif width and line.startswith(" " * width):
            has_paragraphs |= not lines[-1].strip()
            line = " " * (INDENT - width) + line
        elif line.strip() and not (width and lines[-1].strip()):
            width = 0
        lines.append(line)
    return "\n".join(lines)


def lay_out() -> None:
    """Copy every page of the navigation, and every file that these pages link, to a place below PAGES."""
    shutil.rmtree(PAGES, ignore_errors=True)
    pages = list(pages_of(navigation()))
    for page in pages:
        target = PAGES / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(laid_out((ROOT / page).read_text()))
    for name in {name for page in pages for name in other_files(page)}:
        target = PAGES / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)


def main() -> int:
    """Build the site. Returns: the exit status of MkDocs, which is 1 if a link leads nowhere."""
    lay_out()
    (BUILD / "mkdocs.yml").write_text(CONFIGURATION + yaml.safe_dump({"nav": navigation()}, sort_keys=False))
    command = [str(MKDOCS), "build", "--strict", "--clean", "--config-file", str(BUILD / "mkdocs.yml")]
    status = subprocess.run(command, check=False).returncode
    if not status:
        print(f"{HTML.relative_to(ROOT)}: python3 -m http.server --bind 127.0.0.1 --directory {HTML.relative_to(ROOT)}")
    return status


if __name__ == "__main__":
    sys.exit(main())
