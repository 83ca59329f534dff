"""Operations on EC2 that the code of schema level 8 leaves open, and this code finishes, and the other way after a downgrade: nothing
is lost, leaked or done twice.

Each version runs in processes of its own, with its own fakes of kernel and EC2: neither root nor a lab is needed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from ipamd.datastore import command
from ipamd.datastore.migrations import OLDEST_LEVEL
from lab.node.node import REPOSITORY
from tests.upgrade.release import RUN_TIMEOUT_S, git, lacks_commit
from tests.upgrade.test_level_8 import COMMIT

pytestmark = pytest.mark.slow

LIFE = Path(__file__).with_name("operations_life.py")
RESPELLED = {"why", "release", "leaked"}
"""Keys that the step from level 8 renames (tests/unit/datastore/test_migrations.py)."""

CREATING = ("create_eni", "attach_eni", "set_delete_on_termination")
CALLS: dict[str, tuple[str, ...]] = {
    "assign, not yet asked": ("assign_addresses",),
    "assign, done": (),
    "assign prefixes, not yet asked": ("assign_prefixes",),
    "assign prefixes, done": (),
    **{f"create, {point}": CREATING for point in ("intent-opened", "created", "the answer lost")},
    "create, named": CREATING[1:],
    "create, attach-asked": CREATING[2:],
    **{f"create, {point}": () for point in ("attached", "stored", "host-ready")},
    "cannot be attached, deleted": CREATING,
    "cannot be marked, detached": (*CREATING, "delete_eni"),
    **{f"unassign{of}, {point}": ("unassign",) for of in ("", " prefixes") for point in ("intent-opened", "unassigned")},
    **{f"unassign{of}, stored": () for of in ("", " prefixes")},
    "release an ENI, intent-opened": ("detach_eni", "delete_eni"),
    "release an ENI, detached": ("delete_eni",),
    **{f"release an ENI, {point}": () for point in ("deleted", "torn-down", "stored")},
    "leaked, deleted": (),
}
"""By case, the changing calls that are still to be made: each once, whichever version makes them."""

CHANGING = {*CREATING, "assign_addresses", "assign_prefixes", "unassign", "detach_eni", "delete_eni"}

Told = dict[str, dict[str, Any]]
"""By case, what `operations_life.py` printed."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Where the code of each version is."""
    missing = lacks_commit(COMMIT)
    if missing:
        pytest.skip(missing)
    before = tmp_path_factory.mktemp("code-of-before")
    with tarfile.open(fileobj=BytesIO(git("archive", COMMIT, "ipamd", "tests/__init__.py", "tests/fakes").stdout)) as archive:
        archive.extractall(before)
    return {"before": before, "after": REPOSITORY}


@pytest.fixture(scope="module")
def given(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Told]]:
    """What each version left, and what it told of it."""
    places = {name: tmp_path_factory.mktemp(f"given-{name}") for name in folders}
    return {name: (place, live(folders[name], "give", place)) for name, place in places.items()}


@pytest.mark.parametrize(("giver", "taker"), [("before", "after"), ("after", "before")], ids=["upgrade", "one-step-back"])
def test_open_operations_are_finished(
    folders: dict[str, Path], given: dict[str, tuple[Path, Told]], tmp_path: Path, giver: str, taker: str
) -> None:
    """Each goes on where it was broken off and ends: EC2 has what is recorded, attached, and nothing else (I1, I2, I9)."""
    place, left = given[giver]
    shutil.copytree(place, tmp_path / "taken")
    if taker == "before":
        for file in (tmp_path / "taken").glob("*/state.db"):
            assert command.main(["datastore", "--file", str(file), "downgrade", "--to", str(OLDEST_LEVEL)]) == 0
    found = live(folders[taker], "take", tmp_path / "taken")
    assert found.keys() == left.keys() == CALLS.keys()
    for case, one in found.items():
        assert one["outcome"] == "intact", case
        assert spelled_alike(one["began"]) == spelled_alike(left[case]["intents"]), f"{case}: what was left open is read"
        assert [one[fact] for fact in ("intents", "audit", "unrecorded", "not_at_ec2")] == [{}, [], [], []], case
        assert set(one["enis"]) == set(one["recorded_enis"]), case
        assert {tuple(state) for state in one["enis"].values()} == {("attached", True)}, f"{case}: it goes with the node (I9)"
        assert len(one["enis"]) == (2 if case.startswith(("create", "cannot", "leaked")) else 1), case
        assert {call: count for call, count in one["calls"].items() if call in CHANGING} == dict.fromkeys(CALLS[case], 1), case


def spelled_alike(intents: dict[str, Any]) -> dict[str, Any]:
    """Return intents without the keys that the step renames."""
    return {
        name: (kind, {key: value for key, value in payload.items() if key not in RESPELLED})
        for name, (kind, payload) in intents.items()
    }


def live(folder: Path, act: str, place: Path) -> Told:
    """Have one version give or take."""
    env = os.environ | {"PYTHONPATH": str(folder)}
    argv = [sys.executable, str(LIFE), act, str(place)]
    done = subprocess.run(argv, cwd=folder, env=env, check=False, capture_output=True, text=True, timeout=RUN_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["folder"] == str(folder), "it is the code of its own version"
    cases: Told = answer["cases"]
    return cases
