"""What other software appends behind our part of the conflist is its own: kept, asked for its versions, and never fought over."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from ipamd.host import conflist
from ipamd.host.appended_plugins import ASKED_MAX, GONE_S, LIFTS_MAX
from ipamd.host.conflist_keeper import MISSING_APPENDED, ODD_APPENDED
from ipamd.host.runtime_directories import RuntimeDirectories
from ipamd.model.cni_versions import SUPPORTED_VERSIONS
from ipamd.model.companions import CompanionKind
from ipamd.runtime.plugin_directories import plugin_directories
from ipamd.settings import DaemonConfig, Settings
from tests.fakes.clock import FakeClock
from tests.fakes.runtime import FakeRuntime
from tests.unit.test_conflist_keeper import NEW, OLD, Kept, offered, put

MESH: dict[str, Any] = {"type": "mesh-cni", "log_level": "info"}
BEFORE_1_1 = ["0.3.1", "0.4.0", "1.0.0"]


@pytest.fixture
def clock() -> FakeClock:
    """It stands still."""
    return FakeClock()


@pytest.fixture
def kept(tmp_path: Path, clock: FakeClock) -> Kept:
    """A keeper, and the binary of a mesh."""
    made = Kept(tmp_path, clock)
    put(made.bin / "mesh-cni", NEW)
    return made


def document(kept: Kept) -> dict[str, Any]:
    """The file."""
    content: dict[str, Any] = json.loads(kept.path.read_text())
    return content


def types(kept: Kept) -> list[str]:
    """The plugins of the file."""
    return [plugin["type"] for plugin in document(kept)["plugins"]]


def append(kept: Kept, *plugins: dict[str, Any]) -> bytes:
    """As Istio's agent does it: sorted keys, another indentation, whole."""
    content = document(kept)
    content["plugins"] += plugins or [MESH]
    scratch = kept.path.with_name(".mesh.tmp")
    scratch.write_text(json.dumps(content, indent=4, sort_keys=True))
    scratch.replace(kept.path)
    return kept.path.read_bytes()


def conditions(kept: Kept) -> set[str]:
    """The subjects of the conditions."""
    return set(kept.health.conditions_by_subject())


def test_an_appended_plugin_stays(kept: Kept) -> None:
    """Not a byte is changed: no write, no repair, no condition."""
    content = append(kept)
    for _ in range(3):
        kept.keeper.check()
    assert kept.path.read_bytes() == content
    assert (kept.noted, conditions(kept)) == ([], set())
    assert [(seen.kind, seen.name) for seen in kept.companions.seen] == [(CompanionKind.APPENDED, "mesh-cni")]


def test_a_writer_that_never_stops_meets_no_other(kept: Kept) -> None:
    """It appends and takes out, and writes the same again in other forms; we write nothing."""
    without = kept.path.read_bytes()
    for _ in range(20):
        content = append(kept)
        kept.keeper.check()
        assert kept.path.read_bytes() == content
        kept.path.write_bytes(without)
        kept.keeper.check()
        assert kept.path.read_bytes() == without
    assert (kept.noted, conditions(kept)) == ([], set())


def test_a_writer_with_an_old_plugin_is_followed_a_few_times(kept: Kept, clock: FakeClock) -> None:
    """Each time that it takes its plugin out the offer may grow: at once, but a few times within ten minutes only."""
    put(kept.bin / "mesh-cni", OLD)
    writes = 0
    for _ in range(20):
        for plugins in ([{"type": "vpc-cni"}, MESH], [{"type": "vpc-cni"}]):
            content = document(kept) | {"plugins": plugins}
            kept.path.write_text(json.dumps(content))
            before = kept.path.stat().st_ino
            kept.keeper.check()
            writes += kept.path.stat().st_ino != before
    assert writes <= 2 * LIFTS_MAX + 1
    assert offered(kept) == BEFORE_1_1
    assert kept.noted == []
    clock.advance(601)
    kept.keeper.check()
    assert offered(kept) == list(SUPPORTED_VERSIONS)


def test_the_offer_is_what_the_appended_plugin_speaks_too(kept: Kept) -> None:
    """As for those that we chain; when it has gone at an uninstall the offer is whole again."""
    put(kept.bin / "mesh-cni", OLD)
    append(kept)
    kept.keeper.check()
    assert (offered(kept), types(kept)) == (BEFORE_1_1, ["vpc-cni", "mesh-cni"])
    assert kept.keeper.versions_text.split("; ") == [f"CNI {', '.join(BEFORE_1_1)}", "mesh-cni ends at 1.0.0"]
    kept.path.write_text(json.dumps(document(kept) | {"plugins": [{"type": "vpc-cni"}]}))
    kept.keeper.check()
    assert (offered(kept), types(kept)) == (list(SUPPORTED_VERSIONS), ["vpc-cni"])
    assert (kept.noted, conditions(kept)) == ([], set())


def test_cni_version_is_one_that_it_speaks(kept: Kept) -> None:
    """For runtimes that do not know `cniVersions`."""
    put(kept.bin / "mesh-cni", '{"supportedVersions":["0.3.1"]}')
    append(kept)
    kept.keeper.check()
    assert (document(kept)["cniVersion"], offered(kept)) == ("0.3.1", ["0.3.1"])


@pytest.mark.parametrize(
    "says",
    ['{"supportedVersions":["0.2.0"]}', "no JSON", ""],
)
def test_one_that_cannot_be_called_limits_nothing(kept: Kept, says: str) -> None:
    """It is not ours to judge: its entry stays, and a condition names it."""
    put(kept.bin / "mesh-cni", says)
    content = append(kept)
    kept.keeper.check()
    assert kept.path.read_bytes() == content
    assert conditions(kept) == {ODD_APPENDED}
    put(kept.bin / "mesh-cni", NEW)
    kept.keeper.check()
    assert conditions(kept) == set()


def test_it_stays_over_a_start_with_other_settings(kept: Kept) -> None:
    """Our plugins change, in both directions; the mesh's stays behind them."""
    append(kept)
    place = {"conflist_path": kept.path, "cni_bin_dir": kept.bin}
    chained = Settings(daemon=DaemonConfig(**place, portmap=True, chained_plugins='[{"type":"tuning"}]'))  # type: ignore[arg-type]
    plain = Settings(daemon=DaemonConfig(**place))  # type: ignore[arg-type]
    conflist.write(chained)
    assert types(kept) == ["vpc-cni", "portmap", "tuning", "mesh-cni"]
    conflist.write(plain)
    assert types(kept) == ["vpc-cni", "mesh-cni"]
    conflist.write(chained)
    assert types(kept) == ["vpc-cni", "portmap", "tuning", "mesh-cni"]
    assert document(kept)["plugins"][3] == MESH


def test_an_agent_that_writes_an_old_copy_of_our_part(kept: Kept) -> None:
    """It read the file before our settings changed: the former plugin goes, the agent's stays, and it counts as one repair."""
    chained = DaemonConfig(conflist_path=kept.path, cni_bin_dir=kept.bin, portmap=True)
    conflist.write(Settings(daemon=chained))
    stale = document(kept)
    conflist.write(Settings(daemon=kept.config))
    kept.path.write_text(json.dumps(stale | {"plugins": [*stale["plugins"], MESH]}))
    kept.keeper.check()
    assert types(kept) == ["vpc-cni", "mesh-cni"]
    assert len(kept.noted) == 1


def test_a_plugin_that_a_setting_could_chain_is_theirs_if_they_appended_it(kept: Kept) -> None:
    """The usual entry of portmap, word for word, which we would render with VPC_IPAMD_ENABLE_PORTMAP_PLUGIN."""
    put(kept.bin / "portmap", NEW)
    content = append(kept, {"type": "portmap", "snat": True, "capabilities": {"portMappings": True}})
    for _ in range(2):
        kept.keeper.check()
        conflist.write(Settings(daemon=kept.config))
    assert kept.path.read_bytes() == content
    assert kept.noted == []


def test_a_plugin_that_a_setting_chained_is_not_taken_for_an_appended_one(kept: Kept) -> None:
    """A hidden file has it; one that cannot be read costs no more than that the plugin stays."""
    conflist.write(Settings(daemon=DaemonConfig(conflist_path=kept.path, portmap=True, bandwidth=True)))
    append(kept)
    (listed,) = kept.path.parent.glob(".*ours")
    content = listed.read_bytes()
    listed.write_bytes(b"[")
    conflist.write(Settings(daemon=DaemonConfig(conflist_path=kept.path, portmap=True)))
    assert types(kept) == ["vpc-cni", "portmap", "bandwidth", "mesh-cni"]
    listed.write_bytes(content)
    conflist.write(Settings(daemon=DaemonConfig(conflist_path=kept.path)))
    assert types(kept) == ["vpc-cni", "mesh-cni"]


@pytest.mark.parametrize(
    "content", ["", '{"cniVersion": "1.0.0", "pl', "\x00", "{}", '{"name": "other", "plugins": [{"type": "bridge"}]}']
)
def test_a_destroyed_file_comes_back_with_the_plugin_that_was_appended(kept: Kept, content: str) -> None:
    """No pod starts outside the mesh meanwhile."""
    append(kept)
    kept.keeper.check()
    kept.path.write_text(content)
    kept.keeper.check()
    assert document(kept)["plugins"] == [{"type": "vpc-cni"}, MESH]
    assert len(kept.noted) == 1


@pytest.mark.parametrize("has_binary", [True, False])
def test_what_was_appended_to_the_conflist_of_aws_node_comes_along(kept: Kept, *, has_binary: bool) -> None:
    """The first write takes the runtime over from that file, and pods stay in the mesh; its own plugins do not come along."""
    kept.path.unlink()
    plugins = [{"type": "aws-cni"}, {"type": "egress-cni"}, {"type": "portmap"}, MESH, {"type": "gone"}, "text", {"type": "../x"}]
    theirs = {"cniVersion": "0.4.0", "name": "aws-cni", "disableCheck": True, "plugins": plugins}
    kept.path.with_name("10-aws.conflist").write_text(json.dumps(theirs))
    put(kept.bin / "mesh-cni", OLD)
    if not has_binary:
        (kept.bin / "mesh-cni").unlink()
    kept.keeper._is_begun = False
    kept.keeper.check()
    kept.keeper.write()
    assert types(kept) == (["vpc-cni", "mesh-cni"] if has_binary else ["vpc-cni"])
    assert offered(kept) == (BEFORE_1_1 if has_binary else list(SUPPORTED_VERSIONS))
    assert "disableCheck" not in document(kept)


@pytest.mark.parametrize("has_binary", [True, False])
def test_a_removed_or_renamed_file_comes_back(kept: Kept, has_binary: bool) -> None:
    """With the appended plugin, unless its binary has gone too: that is an uninstall."""
    append(kept)
    kept.keeper.check()
    kept.path.rename(kept.path.with_name("10-x.conflist.bak"))
    if not has_binary:
        (kept.bin / "mesh-cni").unlink()
    kept.keeper.check()
    assert types(kept) == (["vpc-cni", "mesh-cni"] if has_binary else ["vpc-cni"])
    assert len(kept.noted) == 1


@pytest.mark.parametrize(
    "plugins",
    [
        [MESH, {"type": "vpc-cni"}],
        [{"type": "vpc-cni", "mtu": 9001}, MESH],
        [{"type": "vpc-cni"}, MESH, {"type": "vpc-cni"}],
        [MESH],
        [{"type": "vpc-cni"}, MESH, {"no": "type"}],
    ],
    ids=["moved", "altered", "doubled", "removed", "unusable"],
)
def test_our_entry_is_repaired_and_theirs_kept(kept: Kept, plugins: list[dict[str, Any]]) -> None:
    """Ours first and as rendered, once; theirs behind it as it was. That is a repair."""
    kept.path.write_text(json.dumps(document(kept) | {"plugins": plugins}))
    kept.keeper.check()
    assert document(kept)["plugins"] == [{"type": "vpc-cni"}, MESH]
    assert len(kept.noted) == 1


def test_doubled_entries_of_others_are_theirs(kept: Kept) -> None:
    """They stay, and a condition says that the runtime runs the plugin twice."""
    content = append(kept, MESH, MESH)
    kept.keeper.check()
    assert kept.path.read_bytes() == content
    assert conditions(kept) == {ODD_APPENDED}


def test_a_plugin_whose_binary_is_gone_for_ten_minutes_is_taken_out(kept: Kept, clock: FakeClock) -> None:
    """Until then its entry stays, and a condition says that pods fail; the removal is in the history."""
    append(kept, MESH, {"type": "other-cni"})
    put(kept.bin / "other-cni", NEW)
    (kept.bin / "mesh-cni").unlink()
    kept.keeper.check()
    assert conditions(kept) == {MISSING_APPENDED}
    clock.advance(GONE_S - 1)
    kept.keeper.check()
    assert types(kept) == ["vpc-cni", "mesh-cni", "other-cni"]
    assert kept.keeper.wait_s() <= 1
    clock.advance(1)
    kept.keeper.check()
    assert types(kept) == ["vpc-cni", "other-cni"]
    assert conditions(kept) == set()
    (noted,) = kept.noted
    assert "mesh-cni" in noted
    assert kept.repair_backoff.counts() == {}


def test_a_binary_that_comes_back_starts_the_time_anew(kept: Kept, clock: FakeClock) -> None:
    """An agent that is rolled brings it along."""
    append(kept)
    for _ in range(3):
        (kept.bin / "mesh-cni").unlink()
        kept.keeper.check()
        clock.advance(GONE_S - 1)
        put(kept.bin / "mesh-cni", NEW)
        kept.keeper.check()
        assert conditions(kept) == set()
    assert types(kept) == ["vpc-cni", "mesh-cni"]


def test_a_plugin_directory_that_cannot_be_seen_is_no_proof(kept: Kept, clock: FakeClock) -> None:
    """The directory is gone, as a mount that failed: nothing is removed, and ours is a condition already."""
    append(kept)
    kept.bin.rename(kept.bin.with_name("elsewhere"))
    for _ in range(2):
        kept.keeper.check()
        clock.advance(GONE_S)
    assert types(kept) == ["vpc-cni", "mesh-cni"]
    assert ODD_APPENDED in conditions(kept)


@pytest.mark.parametrize("known", [True, False])
def test_another_directory_of_the_runtime_may_have_it(tmp_path: Path, clock: FakeClock, *, known: bool) -> None:
    """It is asked there; and while the runtime has not said where it looks nothing is removed."""
    elsewhere = tmp_path / "libexec"
    elsewhere.mkdir()
    kept = Kept(tmp_path, clock, more_directories=lambda: (elsewhere,) if known else None)
    put(elsewhere / "mesh-cni", OLD)
    append(kept)
    for _ in range(2):
        kept.keeper.check()
        clock.advance(GONE_S)
    assert types(kept) == ["vpc-cni", "mesh-cni"]
    assert offered(kept) == (BEFORE_1_1 if known else list(SUPPORTED_VERSIONS))
    assert conditions(kept) == (set() if known else {ODD_APPENDED})


def test_the_runtime_is_asked_seldom_and_its_last_answer_stays(clock: FakeClock) -> None:
    """Once a minute at most, also while it is away."""
    runtime, asked = FakeRuntime(), list[float]()

    def answer() -> tuple[Path, ...]:
        asked.append(clock.monotonic())
        runtime._check()
        return (Path("/a"),)

    runtime.plugin_directories = answer  # type: ignore[method-assign]
    directories = RuntimeDirectories(runtime, clock=clock)
    runtime.is_down = True
    assert [directories.directories(), directories.directories()] == [None, None]
    runtime.is_down = False
    clock.advance(60)
    assert directories.directories() == (Path("/a"),)
    runtime.is_down = True
    clock.advance(60)
    assert directories.directories() == (Path("/a"),)
    assert len(asked) == 3
    assert RuntimeDirectories(None, clock=clock).directories() == ()


@pytest.mark.parametrize(
    ("config", "directories"),
    [
        ('{"cni": {"binDir": "/opt/cni/bin"}}', ["/opt/cni/bin"]),
        ('{"cni": {"binDir": "/a", "binDirs": ["/a", "/b"]}}', ["/a", "/b"]),
        ('{"cni": {"binDir": "", "binDirs": ["relative", 5, "/b"]}}', ["/b"]),
        ('{"cni": {"binDirs": 5}}', []),
        ('{"cni": []}', []),
        ("[]", []),
        ("no JSON", []),
        ("[" * 100_000, []),
    ],
)
def test_what_a_runtime_says_of_its_directories(config: str, directories: list[str]) -> None:
    """containerd's words of both releases; whatever else it says names none."""
    assert plugin_directories({"config": config}) == tuple(map(Path, directories))
    assert plugin_directories({}) == ()


@pytest.mark.parametrize("name", ["/bin/sh", "../bin/sh", ".", "..", "a\0b", "x" * 300, "\ud800"])
def test_a_name_that_no_runtime_runs_is_not_run(kept: Kept, name: str, tmp_path: Path) -> None:
    """The runtime looks names up in its directories; so do we, with the same rule."""
    append(kept, {"type": name})
    kept.keeper.check()
    assert MISSING_APPENDED in conditions(kept)


def drop_in(kept: Kept, name: str, content: str) -> Path:
    """A file in the directory with our network's name, whose plugins libcni chains behind ours from 1.3 on."""
    path = kept.path.parent / "vpc-ipamd" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    return path


def test_a_plugin_in_the_directory_of_our_network_counts_for_the_versions(kept: Kept) -> None:
    """It runs behind ours in the same version, and our file is left alone. Once its file is gone, its limit ends."""
    put(kept.bin / "mesh-cni", OLD)
    before = types(kept)
    path = drop_in(kept, "50-mesh.conf", json.dumps(MESH))
    kept.keeper.check()
    assert (offered(kept), types(kept), conditions(kept)) == (BEFORE_1_1, before, set())
    (companion,) = kept.companions.seen
    assert (companion.kind, companion.name) == (CompanionKind.APPENDED, "mesh-cni")
    path.unlink()
    kept.keeper.check()
    assert offered(kept) == list(SUPPORTED_VERSIONS)
    assert kept.companions.seen == ()


def test_a_dropped_in_plugin_without_binary_is_a_condition_and_its_file_stays(kept: Kept, clock: FakeClock) -> None:
    """The file is another program's: the condition names it, and nobody removes it."""
    (kept.bin / "mesh-cni").unlink()
    path = drop_in(kept, "50-mesh.conf", json.dumps(MESH))
    kept.keeper.check()
    clock.advance(2 * GONE_S)
    kept.keeper.check()
    assert conditions(kept) == {ODD_APPENDED}
    assert path.exists()
    assert offered(kept) == list(SUPPORTED_VERSIONS)
    put(kept.bin / "mesh-cni", NEW)
    kept.keeper.check()
    assert conditions(kept) == set()


@pytest.mark.parametrize("content", ["{", "{}", '{"type": 3}', '{"type": "mesh-cni", "capabilities": []}', "[]"])
def test_a_dropped_in_file_that_no_runtime_loads_limits_nothing(kept: Kept, content: str) -> None:
    """Nor does a file of another suffix, or a list that loads only its own plugins."""
    put(kept.bin / "mesh-cni", OLD)
    drop_in(kept, "50-mesh.conf", content)
    drop_in(kept, "50-mesh.json", json.dumps(MESH))
    kept.keeper.check()
    assert (offered(kept), conditions(kept)) == (list(SUPPORTED_VERSIONS), set())


def test_a_list_that_loads_only_its_own_plugins_has_no_others(kept: Kept) -> None:
    """Others set the field, which is theirs."""
    put(kept.bin / "mesh-cni", OLD)
    drop_in(kept, "50-mesh.conf", json.dumps(MESH))
    kept.path.write_text(json.dumps({**document(kept), "loadOnlyInlinedPlugins": True}))
    kept.keeper.check()
    assert offered(kept) == list(SUPPORTED_VERSIONS)


def test_many_appended_plugins_are_not_all_asked(kept: Kept) -> None:
    """Each may take five seconds."""
    append(kept, *({"type": f"mesh-{number}"} for number in range(ASKED_MAX + 5)))
    for number in range(ASKED_MAX + 5):
        put(kept.bin / f"mesh-{number}", NEW)
    kept.keeper.check()
    assert conditions(kept) == {ODD_APPENDED}
    assert len(types(kept)) == 1 + ASKED_MAX + 5


def test_an_agent_that_writes_between_our_reading_and_writing_loses_nothing(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """What we read is read again before ours takes its place."""
    kept.path.write_text(json.dumps(document(kept) | {"name": "altered"}))
    write_synced = conflist._write_synced

    def slow(path: Path, content: dict[str, Any], *, mode: int) -> None:
        write_synced(path, content, mode=mode)
        monkeypatch.setattr(conflist, "_write_synced", write_synced)
        append(kept)

    monkeypatch.setattr(conflist, "_write_synced", slow)
    kept.keeper.check()
    assert types(kept) == ["vpc-cni", "mesh-cni"]
    assert document(kept)["name"] == "vpc-ipamd"
    assert not list(kept.path.parent.glob(".*tmp"))


def test_a_file_that_is_being_written_is_read_again(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linkerd's agent takes its entry out in place: first the file is empty."""
    put(kept.bin / "mesh-cni", NEW)
    append(kept)
    kept.keeper.check()
    whole = json.dumps(document(kept) | {"plugins": [{"type": "vpc-cni"}]}).encode()
    kept.path.write_bytes(b"")
    inode = kept.path.stat().st_ino
    monkeypatch.setattr(time, "sleep", lambda _: kept.path.write_bytes(whole))
    kept.keeper.check()
    assert (kept.path.read_bytes(), kept.path.stat().st_ino) == (whole, inode)
    assert kept.noted == []


def test_permissions_of_others_are_kept(kept: Kept) -> None:
    """A file that others closed is not opened by a repair."""
    append(kept)
    kept.path.chmod(0o600)
    kept.path.write_text(json.dumps(document(kept) | {"name": "altered"}))
    kept.keeper.check()
    assert (types(kept), kept.path.stat().st_mode & 0o777) == (["vpc-cni", "mesh-cni"], 0o600)


def test_the_same_file_is_not_written_again_for_its_form(kept: Kept) -> None:
    """A start keeps the agent's form, owner and permissions."""
    append(kept)
    kept.path.chmod(0o600)
    before = os.stat(kept.path)
    conflist.write(Settings(daemon=kept.config))
    after = os.stat(kept.path)
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)
