"""The patch that takes a cluster back by more than one release: what its container runs, and with what."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ipamd.datastore import command
from ipamd.datastore.disk import Disk
from ipamd.datastore.migrations import LEVEL, OLDEST_LEVEL, level_of
from tests.unit.datastore.support import open_at
from tests.unit.manifests.manifest import MANIFESTS, container, environment, mounts, pod

PATCH: dict[str, Any] = yaml.safe_load((MANIFESTS / "downgrade.yaml").read_text())
STEP: dict[str, Any] = PATCH["spec"]["template"]["spec"]["initContainers"][0]


def test_it_fits_the_daemonset() -> None:
    """Its mount is the run directory of the daemon, its containers beside the step are the DaemonSet's, and it has no power at all."""
    spec = PATCH["spec"]["template"]["spec"]
    (mount,) = STEP["volumeMounts"]
    assert (mount["name"], mount["mountPath"]) in {(one["name"], one["mountPath"]) for one in mounts()}
    assert mount["mountPath"] == environment()["VPC_IPAMD_RUN_DIR"]
    assert [one["name"] for one in spec["containers"]] == [container()["name"]]
    assert [one["name"] for one in spec["initContainers"][1:]] == [one["name"] for one in pod()["initContainers"]]
    assert {one["image"] for one in [*spec["containers"], *spec["initContainers"][1:]]} == {"EARLIER"}
    assert STEP["securityContext"]["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize("found", ["none", "of the later release", "of an earlier one"])
def test_a_node_goes_back_whatever_it_has(found: str, tmp_path: Path) -> None:
    """The step succeeds on a node with the later release's file, on one that has none yet, and on one whose file is older still."""
    path = tmp_path / "state.db"
    if found != "none":
        open_at(path).datastore.close()
    if found == "of an earlier one":
        assert command.main(["datastore", "--file", str(path), "downgrade", "--to", str(OLDEST_LEVEL)]) == 0
    program = tmp_path / "ipamd"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ipamd.daemon "$@"\n')
    program.chmod(0o755)
    script = STEP["command"][-1].replace("/run/vpc-ipamd", str(tmp_path)).replace("LEVEL", str(LEVEL - 1))
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "VPC_IPAMD_RUN_DIR": str(tmp_path)}
    done = subprocess.run(
        ["/bin/sh", "-c", script], env=variables, cwd=MANIFESTS.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    if found != "none":
        disk = Disk(path, lock_wait_s=0.0)
        assert level_of(disk) == (OLDEST_LEVEL if found == "of an earlier one" else LEVEL - 1)
        disk.close()
