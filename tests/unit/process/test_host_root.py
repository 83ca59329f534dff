"""Paths of a node, from a container that has the node's files below a directory."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import pytest

from ipamd.process.host_root import LINKS_MAX, below


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("var/run", "/run"),
        ("var/run", "../run"),
        ("var", "/srv/var"),
        ("var/run", "../../../../run"),
    ],
)
def test_links_of_directories_do_not_lead_out(tmp_path: Path, link: str, target: str) -> None:
    """Absolute ones begin at the directory again, and `..` ends there, as for a process whose root it is."""
    for folder in ("run/aws-node", "srv/var", "var"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    if link == "var":
        (tmp_path / "var").rmdir()
        (tmp_path / "srv/var/run").symlink_to("/run")
    (tmp_path / link).symlink_to(target)
    assert below(tmp_path, PurePosixPath("/var/run/aws-node/ipamd.sock")) == tmp_path / "run/aws-node/ipamd.sock"


def test_a_file_that_is_a_link_stays_itself(tmp_path: Path) -> None:
    """It is the link that a clean-up removes."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/10-x.conflist").symlink_to("/elsewhere")
    assert below(tmp_path, PurePosixPath("/etc/10-x.conflist")) == tmp_path / "etc/10-x.conflist"


def test_a_path_that_is_not_there_is_taken_as_it_is(tmp_path: Path) -> None:
    """Whoever opens it gets the error."""
    assert below(tmp_path, PurePosixPath("/no/such/file")) == tmp_path / "no/such/file"


def test_a_circle_of_links_ends(tmp_path: Path) -> None:
    """After as many links as the kernel follows."""
    (tmp_path / "a").symlink_to("/b")
    (tmp_path / "b").symlink_to("/a")
    assert LINKS_MAX < 100
    assert below(tmp_path, PurePosixPath("/a/file")).parent.parent == tmp_path
