"""The adapter on real files: what its file says, who wrote last, whose conflist is where."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import pytest

from ipamd.model.errors import ForeignStateError, TakeoverError
from ipamd.model.failures import FailureCode
from ipamd.model.family import IPV4, IPV6, Family
from ipamd.model.legs.aws_node_extra import EGRESS_STATE
from tests.errors import failed
from tests.unit.aws_node.conftest import ONE, made, write_theirs

CONFLIST = "10-aws.conflist"
SAVED = f"{CONFLIST}.vpc-ipamd-saved"


def test_its_file_is_read_or_refused(place: Path) -> None:
    """No file is no allocation; a directory, a link to nowhere, and damage are told apart."""
    node, path = made(place), place / "aws-node/ipam.json"
    assert node.allocations() == ()
    write_theirs(place, ONE)
    assert node.allocations() == (ONE,)
    path.write_text("{}")
    with pytest.raises(ForeignStateError):
        node.allocations()
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ForeignStateError, check=failed(FailureCode.NODE_FILE_UNREADABLE)):
        node.allocations()


def test_who_wrote_last_is_noticed(place: Path) -> None:
    """Never noted: only rows that are younger than its file are believed. Noted: any new file is news, ours is none."""
    node = made(place)
    assert not node.has_run_since(), "there is no file"
    write_theirs(place, ONE, mtime_ns=10**18)
    assert node.has_run_since(), "there are no rows"
    (place / "run/state.db").write_text("rows")
    assert not node.has_run_since(), "an old file beside younger rows"
    write_theirs(place, ONE)
    os.utime(place / "run/state.db", ns=(10**18, 10**18))
    assert node.has_run_since(), "a file that is younger than the rows"
    node.finish()
    assert not node.has_run_since()
    write_theirs(place, ONE)
    assert made(place).has_run_since(), "it wrote again, the same content"
    node.write([ONE], routed=())
    assert not made(place).has_run_since(), "what we wrote is no news"
    (place / "aws-node/ipam.json").unlink()
    assert not node.has_run_since()


def test_a_node_that_had_no_file_notices_the_first_one_whatever_the_clock_says(place: Path) -> None:
    """A clock that is set back makes the other's file older than our rows, which it is not."""
    node = made(place)
    (place / "run/state.db").write_text("rows")
    node.finish()
    assert not node.has_run_since()
    write_theirs(place, ONE, mtime_ns=10**18)
    assert made(place).has_run_since()


@pytest.mark.parametrize("step", ["before the rename", "after the rename"])
def test_a_kill_while_its_file_is_written_is_no_news(place: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The next process still knows that the node is to be the other's, whichever of both files is in place (I1)."""
    write_theirs(place, ONE)
    node = made(place)
    node.finish()
    node.begin_export()
    real = Path.replace

    def die(source: Path, target: Path) -> Path:
        if Path(target).name != "ipam.json":
            return real(source, target)
        if step == "after the rename":
            real(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        node.write([ONE], routed=())
    monkeypatch.undo()
    successor = made(place)
    assert (successor.has_run_since(), successor.is_exporting) == (False, True)
    successor.write([ONE], routed=())
    assert not made(place).has_run_since()
    write_theirs(place, ONE)
    assert made(place).has_run_since(), "its daemon came"


HOST_LOCAL = Path("/usr/lib/cni/host-local")


@pytest.mark.skipif(not HOST_LOCAL.exists(), reason="Debian's containernetworking-plugins are not installed")
@pytest.mark.parametrize("family", [IPV4, IPV6])
def test_addresses_for_egress_are_written_as_its_plugin_keeps_them(place: Path, family: Family) -> None:
    """Its host-local gives none of them again, and a DEL of one frees it. What it kept of others stays while it is routed."""
    egress, state = family.local_range, place / "cni" / EGRESS_STATE[family]

    def host_local(command: str, container_id: str) -> str:
        ipam = {"type": "host-local", "ranges": [[{"subnet": str(egress.network)}]], "dataDir": str(state)}
        config = {"cniVersion": "0.4.0", "name": "aws-cni", "type": "egress-cni", "ipam": ipam}
        names = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": container_id,
            "CNI_NETNS": "/x",
            "CNI_IFNAME": "eth0",
            "CNI_PATH": "/",
        }
        done = subprocess.run([HOST_LOCAL], input=json.dumps(config), env=names, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["ips"][0]["address"].partition("/")[0] if done.stdout else ""

    old = {name: host_local("ADD", name) for name in ("gone", "lives")}
    assert old["gone"] == str(egress.first)
    ours = egress.first + 2
    made(place).write([replace(ONE, other_address=ours), ONE], routed={ip_address(old["lives"])})
    folder = state / "aws-cni"
    assert {path.name for path in folder.iterdir()} == {"last_reserved_ip.0", "lock", old["lives"], str(ours)}
    (folder / "last_reserved_ip.0").unlink()
    assert [host_local("ADD", name) for name in ("b", "c")] == [old["gone"], str(egress.first + 3)], (
        "neither that of ours nor the other"
    )
    host_local("DEL", ONE.key.container_id)
    assert not (folder / str(ours)).exists()
    made(place).write([], routed=())
    assert {path.name for path in folder.iterdir()} == {"last_reserved_ip.0", "lock"}


@pytest.mark.parametrize("name", ["../x", "/etc", ".", ""])
def test_a_network_that_is_no_name_of_a_directory_leads_nowhere(place: Path, name: str) -> None:
    """Somebody's conflist names it."""
    (place / "net.d" / CONFLIST).write_text(json.dumps({"name": name}))
    assert made(place).network_name() == "aws-cni"


def test_an_export_is_noted_until_it_is_taken_back(place: Path) -> None:
    """The note outlives the process and the boot; a damaged one is none."""
    node = made(place)
    assert not node.is_exporting
    node.begin_export()
    node.write([ONE], routed=())
    assert made(place).is_exporting
    node.end_export()
    assert not made(place).is_exporting
    assert not node.has_run_since()
    node.begin_export()
    write_theirs(place, ONE)
    node.finish()
    assert node.is_exporting, "that its daemon came is what an export is for"
    (place / "run/aws-node.json").unlink()
    assert made(place, boot_id="another").is_exporting, "a reboot does not lift it"
    node.end_export()
    assert not made(place).is_exporting
    (place / "run/aws-node.json").write_text('{"exporting": true}')
    assert node.is_exporting, "of the release before"
    (place / "run/aws-node.json").write_text("[")
    assert not node.is_exporting


@pytest.mark.parametrize(
    ("conflist", "name"),
    [
        (None, "aws-cni"),
        ('{"name": "our-chain", "plugins": []}', "our-chain"),
        ("{", "aws-cni"),
        ("[]", "aws-cni"),
        ('{"name": 7}', "aws-cni"),
    ],
)
def test_entries_have_the_network_of_its_conflist(place: Path, conflist: str | None, name: str) -> None:
    """Its plugin's DEL names the network of the node's conflist, and would find no entry of another."""
    for file_name in (SAVED, CONFLIST):
        if conflist is not None:
            (place / "net.d" / file_name).write_text(conflist)
        made(place).write([ONE], routed=())
        (written,) = json.loads((place / "aws-node/ipam.json").read_bytes())["allocations"]
        assert written["networkName"] == name
        (place / "net.d" / file_name).unlink(missing_ok=True)
    (place / "net.d" / SAVED).mkdir()
    made(place).write([ONE], routed=())


def test_its_conflist_is_renamed_and_comes_back(place: Path) -> None:
    """Both ways may be repeated; a newer one of its replaces the saved one; what is in place is not overwritten."""
    node, folder = made(place), place / "net.d"
    assert node.save_conflist() == node.restore_conflist() == node.remove_our_conflist() == ""
    (folder / CONFLIST).write_text("old")
    assert SAVED in node.save_conflist()
    assert not node.has_conflist()
    (folder / CONFLIST).write_text("new")
    node.save_conflist()
    assert (folder / SAVED).read_text() == "new"
    assert CONFLIST in node.restore_conflist()
    assert (folder / CONFLIST).read_text() == "new"
    (folder / SAVED).write_text("stale")
    assert node.restore_conflist() == ""
    assert (folder / CONFLIST).read_text() == "new"
    (folder / "10-vpc-ipamd.conflist").write_text("ours")
    (folder / ".10-vpc-ipamd.conflist.ours").write_text("the list of our former plugins")
    assert "10-vpc-ipamd.conflist was removed" in node.remove_our_conflist()
    assert sorted(path.name for path in folder.iterdir()) == [CONFLIST, SAVED]


def test_a_directory_is_nobodys_conflist(place: Path) -> None:
    """A setting that names the folder instead of the file does not have all of it renamed."""
    node = made(place, conflist=str(place / "net.d"))
    assert not node.has_conflist()
    (place / "net.d" / CONFLIST).write_text("theirs")
    assert made(place, conflist=str(place / "net.d" / CONFLIST)).has_conflist()


def test_refusals_of_the_disk_are_typed(place: Path) -> None:
    """A directory that is missing or in the way: the operator learns which."""
    (place / "aws-node").rmdir()
    (place / "aws-node").write_text("a file")
    with pytest.raises(TakeoverError, check=failed(FailureCode.SHARED_FILE_REFUSED)):
        made(place).write([ONE], routed=())
    (place / "run").rmdir()
    with pytest.raises(TakeoverError, check=failed(FailureCode.SHARED_FILE_REFUSED)):
        made(place).begin_export()


@pytest.mark.privileged
def test_a_read_only_directory_without_its_conflist_needs_no_change(place: Path) -> None:
    """The kernel refuses to rename or remove what is not there; what is there, and cannot be renamed, is an error."""
    node, folder = made(place), place / "net.d"
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        assert node.save_conflist() == node.restore_conflist() == node.remove_our_conflist() == ""
        node.end_export()
        subprocess.run(["mount", "-o", "remount,bind,rw", str(folder)], check=True)
        (folder / CONFLIST).write_text("theirs")
        (folder / "10-vpc-ipamd.conflist").write_text("ours")
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        for change in (node.save_conflist, node.remove_our_conflist):
            with pytest.raises(TakeoverError):
                change()
    finally:
        subprocess.run(["umount", str(folder)], check=True)
