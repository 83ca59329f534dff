"""A file that sorts before our conflist and is no configuration: containerd has no network then, and status names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.runtime.conftest import rig_with
from tests.rig import Rig, wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.containerd]

UNUSABLE = {
    "half written": ("00-x.conflist", b'{"cniVersion": "1.0.0", "na'),
    "without plugins": ("00-x.conflist", b'{"cniVersion": "1.0.0", "name": "x", "plugins": []}'),
    "without a type": ("00-x.conf", b'{"cniVersion": "1.0.0", "name": "x"}'),
}


def is_named(made: Rig) -> bool:
    """Whether status has the condition."""
    status = made.status()
    return status is not None and "other-conflist-unusable" in {code for one in status["conditions"] for code in one["codes"]}


@pytest.mark.parametrize("version", ["2", pytest.param("1.6", marks=pytest.mark.heavy)])
def test_a_file_that_containerd_cannot_use_is_named(version: str) -> None:
    """While it is there, and no longer."""
    with rig_with(version) as made:
        for what, (name, content) in UNUSABLE.items():
            path = Path(made.node.root) / "etc/cni/net.d" / name
            path.write_bytes(content)
            wait_until(lambda: is_named(made), what=f"named: {what}")
            wait_until(lambda: made.node.cri.network_problem(timeout_s=120) != "", what=f"no network: {what}")
            path.unlink()
            wait_until(lambda: not is_named(made), what=f"the end of {what}")
            wait_until(lambda: made.node.cri.network_problem(timeout_s=120) == "", what="NetworkReady")
        made.assert_sound(expected=0)
