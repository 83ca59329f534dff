"""Configurations that are nearly JSON: Python's parser takes more than RFC 8259, and that must not come out again."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from ipamd.host import conflist
from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode
from ipamd.rpc.run_dir import prepare_run_dir
from ipamd.settings import load
from tests.errors import failed
from tests.fakes.node import FakeNode
from tests.stories.in_process import ask

VERBS = ("ADD", "CHECK", "GC", "STATUS")
NOT_JSON = {
    "NaN": b'{"cniVersion":"1.1.0","name":"n","prevResult":{"x":NaN}}',
    "Infinity": b'{"cniVersion":"1.1.0","name":"n","prevResult":{"x":[-Infinity]}}',
    "1e400": b'{"cniVersion":"1.1.0","name":"n","prevResult":{"x":1e400}}',
    "-1e400": b'{"cniVersion":"1.1.0","name":"n","prevResult":{"x":-1e400}}',
    "surrogate in a version": b'{"cniVersion":"\\ud800","name":"n"}',
    "surrogate in a name": b'{"cniVersion":"1.1.0","name":"\\udfff"}',
    "surrogate in a key": b'{"cniVersion":"1.1.0","name":"n","prevResult":{"\\uD800x":1}}',
    "surrogate in bytes": b'{"cniVersion":"1.1.0\xed\xa0\x80","name":"n"}',
    "surrogate in an attachment": b'{"cniVersion":"1.1.0","name":"n","cni.dev/valid-attachments":'
    b'[{"containerID":"a","ifname":"\\ud800"}]}',
    "UTF-16": '{"cniVersion":"1.1.0","name":"n"}'.encode("utf-16"),
    "not UTF-8": b'{"cniVersion":"1.1.0","name":"\xff"}',
    "5,000 digits": b'{"cniVersion":"1.1.0","name":"n","prevResult":{"x":' + b"1" * 5000 + b"}}",
    "100,000 brackets": b'{"cniVersion":"1.1.0","name":"n","prevResult":' + b"[" * 100_000,
}


def netns_of(node: FakeNode) -> str:
    """Make a sandbox's namespace; its path."""
    node.wiring.make_netns("/run/netns/a")
    return "/run/netns/a"


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("config", NOT_JSON.values(), ids=NOT_JSON.keys())
def test_what_is_not_json_is_refused_as_such(node: FakeNode, verb: str, config: bytes) -> None:
    """Code 6, whatever the verb; the reply can be sent, and its version is one that can be printed."""
    reply = ask(node, verb, "a", netns=netns_of(node), config=config)
    assert (reply.error.code, reply.result) == (6, b""), reply
    assert reply.error.cni_version in ("", "1.1.0")
    assert reply.SerializeToString()
    node.assert_sound()


def test_text_beyond_16_bits_is_json(node: FakeNode) -> None:
    """A pair of escapes for one character is as good as the character; numbers may be large, small and fractions."""
    config = b'{"cniVersion":"1.1.0","name":"\\ud83d\\ude00","prevResult":{"x":[1e300,-1.5,0.0,123456789012345678901234567890]}}'
    reply = ask(node, "ADD", "a", netns=netns_of(node), config=config)
    assert not reply.HasField("error"), reply
    assert json.loads(reply.result)["x"][0] == 1e300


def test_a_damaged_configuration_does_not_keep_a_del(node: FakeNode) -> None:
    """DEL needs the identity only (I3)."""
    node.add("a")
    for config in NOT_JSON.values():
        assert not ask(node, "DEL", "a", config=config).HasField("error")


@pytest.mark.parametrize("below", ["", "/run"])
def test_a_file_in_place_of_the_run_directory_is_said(tmp_path: Path, below: str) -> None:
    """A settings error that names it, not a traceback."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, check=failed(FailureCode.DIRECTORY_NOT_MADE)):
        prepare_run_dir(Path(f"{tmp_path}/file{below}"))


def test_the_conflist_is_not_written_through_a_link(tmp_path: Path) -> None:
    """Who can write the configuration directory cannot have the daemon overwrite another file: a link there is not followed."""
    victim, target = tmp_path / "victim", tmp_path / "net.d" / "10-vpc-ipamd.conflist"
    victim.write_text("untouched")
    target.parent.mkdir()
    (target.parent / f".{target.name}.tmp").symlink_to(victim)
    settings = load({"VPC_IPAMD_CONFLIST_FILE": str(target)})
    conflist.write(settings)
    assert victim.read_text() == "untouched"
    assert not target.is_symlink()
    assert json.loads(target.read_text()) == conflist.render(settings)
    assert target.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in target.parent.iterdir() if path.name.endswith(".conflist")] == [target.name]


def test_a_conflist_that_is_a_link_is_replaced(tmp_path: Path) -> None:
    """The rename takes the link's place; what it points at stays as it is."""
    victim, target = tmp_path / "victim", tmp_path / "10-vpc-ipamd.conflist"
    victim.write_text("untouched")
    target.symlink_to(victim)
    conflist.write(load({"VPC_IPAMD_CONFLIST_FILE": str(target)}))
    assert (victim.read_text(), target.is_symlink()) == ("untouched", False)


def test_a_conflist_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """A directory in its place: a settings error, and no temporary file beside it."""
    target = tmp_path / "10-vpc-ipamd.conflist"
    target.mkdir()
    with pytest.raises(SettingsError, check=failed(FailureCode.CONFLIST_NOT_WRITTEN)):
        conflist.write(load({"VPC_IPAMD_CONFLIST_FILE": str(target)}))
    assert list(tmp_path.iterdir()) == [target]


def test_a_directory_of_others_is_left_as_it_is(tmp_path: Path) -> None:
    """VPC_IPAMD_RUN_DIR=/etc would close it to every other user of the node."""
    theirs = tmp_path / "etc"
    theirs.mkdir(mode=0o755)
    for name in ("alternatives", "apt", "cni", "default"):
        (theirs / name).mkdir()
    (theirs / "passwd").touch()
    with pytest.raises(
        SettingsError, check=failed(FailureCode.DIRECTORY_OF_OTHERS, directories="alternatives; apt; cni; and 1 more")
    ):
        prepare_run_dir(theirs)
    assert theirs.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("name", ["", "network.json", "ipamd.lock", "spool", "hooks"])
def test_an_empty_directory_and_ours_are_closed(tmp_path: Path, name: str) -> None:
    """Of a hostPath volume, of a daemon before, of a plugin or an operator who came first, also with a file of their own."""
    run_dir = tmp_path / "run"
    run_dir.mkdir(mode=0o755)
    if name:
        (run_dir / name).touch()
    if name not in ("", "network.json"):
        (run_dir / "other").mkdir()
    prepare_run_dir(run_dir)
    assert run_dir.stat().st_mode & 0o777 == 0o700


def test_a_directory_that_cannot_be_closed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount that is read-only: one sentence for the operator, instead of a traceback."""

    def refuse(_path: Path, _mode: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "chmod", refuse)
    with pytest.raises(SettingsError, check=failed(FailureCode.DIRECTORY_NOT_CLOSED)):
        prepare_run_dir(tmp_path)


ANNOTATIONS = {"capabilities": {"io.kubernetes.cri.pod-annotations": True}}


@pytest.mark.parametrize(
    ("environment", "ours"),
    [
        ({}, {}),
        ({"POD_SECURITY_GROUP_ENFORCING_MODE": "standard", "VPC_IPAMD_POD_SECURITY_GROUP_SOURCE": "annotations"}, {}),
        ({"ENABLE_POD_ENI": "true"}, ANNOTATIONS),
        ({"ENABLE_POD_ENI": "true", "VPC_IPAMD_POD_SECURITY_GROUP_SOURCE": "kubelet"}, {}),
    ],
)
def test_annotations_are_asked_for_where_they_are_read(
    tmp_path: Path, environment: dict[str, str], ours: dict[str, object]
) -> None:
    """By our own entry alone, and not any more once the setting has gone: what an earlier start wrote is replaced."""
    place = {"VPC_IPAMD_CONFLIST_FILE": str(tmp_path / "10-x.conflist"), "VPC_IPAMD_ENABLE_PORTMAP_PLUGIN": "true"}
    for before in ({}, {"ENABLE_POD_ENI": "true"}):
        conflist.write(load(place | before))
        path = conflist.write(load(place | environment))
        plugins = json.loads(path.read_text())["plugins"]
        assert plugins[0] == {"type": "vpc-cni", **ours}
        assert plugins[1]["capabilities"] == {"portMappings": True}
