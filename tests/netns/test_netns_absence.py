"""An absent path proves that a namespace is gone only where the host's mounts appear (I11): tried in mount namespaces of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ipamd.kernel.netns_absence import Mount, covering_mount, is_netns_gone

ASK = "import sys; from ipamd.kernel.netns_absence import is_netns_gone; print(is_netns_gone(sys.argv[1]))"

MOUNTS = """\
20 1 0:1 / / rw,relatime master:1 - overlay overlay rw
21 20 0:2 / /run rw - tmpfs tmpfs rw
22 21 0:3 /netns /run/netns rw master:5 - tmpfs tmpfs rw
23 21 0:4 / /run/with\\040space rw shared:6 - tmpfs tmpfs rw
24 22 0:5 net:[1] /run/netns/cni-1 rw master:7 - nsfs nsfs rw
"""


def asked(prepare: str, path: str, tmp_path: Path) -> bool:
    """What is answered in a new mount namespace, after shell commands that mount in it."""
    script = f"set -e; mount -t tmpfs none {tmp_path}; {prepare}; exec {sys.executable} -c '{ASK}' {path}"
    done = subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
        cwd=Path(__file__).parents[2],
    )
    return done.stdout.strip() == "True"


@pytest.mark.privileged
@pytest.mark.parametrize(
    ("prepare", "name", "is_gone"),
    [
        ("mount --make-shared {0}", "cni-1", True),
        ("mount --make-shared {0}; mount --make-slave {0}", "cni-1", False),  # of a group without another member: private
        ("mount --make-shared {0}; mkdir {0}/sub; mount -t tmpfs none {0}/sub; mount --make-private {0}/sub", "sub/cni-1", False),
        ("true", "cni-1", False),
        ("mount --make-shared {0}", "missing/cni-1", False),
        ("mount --make-shared {0}; touch {0}/cni-1", "cni-1", False),
        ("mount --make-shared {0}; touch {0}/cni-1; mount --bind /proc/self/ns/net {0}/cni-1", "cni-1", False),
        ("mount --make-shared {0}; ln -s /nowhere {0}/cni-1", "cni-1", False),
        ("mount --make-shared {0}; mkdir {0}/netns; ln -s {0}/netns {0}/other", "other/cni-1", True),
    ],
)
def test_only_an_absent_path_on_a_propagated_mount_is_a_proof(tmp_path: Path, prepare: str, name: str, is_gone: bool) -> None:
    """As the kernel shows the mounts."""
    assert asked(prepare.format(tmp_path), str(tmp_path / name), tmp_path) is is_gone


def test_the_root_of_the_mounts_proves_nothing(tmp_path: Path) -> None:
    """A container's root file system may have a tag of propagation: the volume with the namespaces is not mounted there."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text("20 1 0:1 / / rw,relatime master:1 - overlay overlay rw\n")
    assert not is_netns_gone(str(tmp_path / "cni-1"), mounts_path=str(mounts))


def test_mounts_that_cannot_be_read_prove_nothing(tmp_path: Path) -> None:
    """Silence is no evidence."""
    assert not is_netns_gone(str(tmp_path / "cni-1"), mounts_path=str(tmp_path / "missing"))


@pytest.mark.parametrize(
    ("directory", "mount"),
    [
        ("/run/netns", Mount("/run/netns", True)),
        ("/run/netnsx", Mount("/run", False)),
        ("/run/with space", Mount("/run/with space", True)),
        ("/var/run/netns", Mount("/", True)),
    ],
)
def test_the_innermost_mount_counts(directory: str, mount: Mount) -> None:
    """Its point is an ancestor by whole names."""
    assert covering_mount(directory, MOUNTS) == mount


def test_the_mount_on_top_counts() -> None:
    """Of two at one point the later one."""
    over = MOUNTS + "30 22 0:9 / /run/netns rw - tmpfs tmpfs rw\n"
    assert covering_mount("/run/netns", over) == Mount("/run/netns", False)
