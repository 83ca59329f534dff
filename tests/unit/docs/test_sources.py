"""docs/sources.md names public sources only, and all that the code cites."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_sources_are_public() -> None:
    """Every row of docs/sources.md names something that a reader can open: a URL, a document with a number, or a file of the
    project of its section."""
    text = (ROOT / "docs" / "sources.md").read_text()
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        title = section.splitlines()[0]
        rows = re.findall(r"^\| (?!We take|Files|---)([^|]+) \| ([^|]+) \|", section, re.M)
        assert rows, title
        is_repository = title == "amazon-vpc-cni-k8s"
        for taken, origin in rows:
            public = r"https://|RFC \d+|\(\d\)|\.[hc]`" + (
                r"|`(README\.md|(cmd|pkg|misc|utils)/[\w./-]+)`" if is_repository else ""
            )
            assert re.search(public, origin), taken


def test_every_source_of_the_code_is_listed() -> None:
    """A URL, an RFC or a file of amazon-vpc-cni-k8s that the code cites is in docs/sources.md; single issues need not be."""
    listed = (ROOT / "docs" / "sources.md").read_text()
    files = [path for folder in ("ipamd", "cni_plugin") for path in (ROOT / folder).rglob("*.py")]
    text = "\n".join(path.read_text() for path in files)
    cited = set(re.findall(r"https://(?:docs\.aws|aws|kubernetes|www\.sqlite|github)\.[\w./-]+[\w/]", text))
    cited |= set(re.findall(r"\bRFC \d+", text))
    cited |= set(re.findall(r"amazon-vpc-cni-k8s ((?:cmd|docs|misc|pkg|utils)/[\w./-]+\w)", text))
    assert len(cited) > 10
    assert sorted(one for one in cited if one not in listed and not re.search(r"/(issues|pull)/\d+$", one)) == []
