"""The lock files hold every Python package of the image, by hash, in a version that setup.cfg allows; and no other."""

from __future__ import annotations

import configparser
import importlib.metadata
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.unit.manifests.manifest import MANIFESTS, ROOT

RENEW = "run `make lock`"


def locked(path: Path) -> dict[str, tuple[Version, list[str]]]:
    """Read a lock: canonical name -> version and SHA-256 of the release's files. Raises: ValueError for a line of another kind."""
    found: dict[str, tuple[Version, list[str]]] = {}
    name = ""
    for line in path.read_text().splitlines():
        text = line.strip().removesuffix("\\").strip()
        if not text or text.startswith("#"):
            continue
        if pin := re.fullmatch(r"([a-z0-9.-]+)==(\S+)", text):
            name = canonicalize_name(pin[1])
            found[name] = (Version(pin[2]), [])
        elif digest := re.fullmatch(r"--hash=sha256:([0-9a-f]{64})", text):
            found[name][1].append(digest[1])
        else:
            raise ValueError(f"{path}: {line!r} is no pin and no hash")
    return found


DAEMON = locked(MANIFESTS / "image" / "requirements.lock")


def _declared() -> list[Requirement]:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return [Requirement(line) for line in parser["options"]["install_requires"].splitlines() if line]


@pytest.mark.parametrize("requirement", _declared(), ids=lambda requirement: requirement.name)
def test_what_is_declared_is_locked(requirement: Requirement) -> None:
    """In a version that setup.cfg allows."""
    assert canonicalize_name(requirement.name) in DAEMON, RENEW
    assert requirement.specifier.contains(DAEMON[canonicalize_name(requirement.name)][0]), RENEW


def test_what_these_need_is_locked_and_nothing_else() -> None:
    """The lock is the closure of what is declared, by what the packages themselves say (as they are installed here)."""
    needed: set[str] = set()
    waiting = [canonicalize_name(requirement.name) for requirement in _declared()]
    while waiting:
        name = waiting.pop()
        if name in needed:
            continue
        needed.add(name)
        for line in importlib.metadata.requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": "", "platform_machine": "aarch64"}):
                waiting.append(canonicalize_name(requirement.name))
    assert set(DAEMON) == needed, RENEW


@pytest.mark.parametrize("name", ["requirements.lock", "build.lock"])
def test_every_file_has_its_hash(name: str) -> None:
    """Two at least: a release has files for several machines, or a wheel and its sources."""
    for package, (_, hashes) in locked(MANIFESTS / "image" / name).items():
        assert len(set(hashes)) >= 2, package
