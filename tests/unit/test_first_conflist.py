"""A file that the runtime takes instead of ours is a fault only if it does not lead to our plugin."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ipamd.host.conflist import ConflistFile
from ipamd.host.conflist_keeper import NOT_FOLLOWED, OTHER_FIRST, STALE_COPY
from ipamd.host.first_conflist import BYTES_MAX, STEPS_MAX, FirstConflist, Target, first_conflist
from ipamd.model.cni_versions import SUPPORTED_VERSIONS
from ipamd.model.companions import CompanionKind
from ipamd.model.conflist_copies import NO_ANNOTATIONS
from ipamd.settings import DaemonConfig, Settings, load
from tests.fakes.clock import FakeClock
from tests.unit.test_conflist_keeper import NEW, OLD, Kept, put

Json = dict[str, Any]
BRIDGE: Json = {"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "bridge"}]}


class Directory:
    """A CNI configuration directory with our file in it."""

    def __init__(self, path: Path, **config: Any) -> None:
        self.path = path / "net.d"
        self.file = ConflistFile(Settings(daemon=DaemonConfig(conflist_path=self.path / "10-vpc-ipamd.conflist", **config)))
        self.file.write(SUPPORTED_VERSIONS)
        self.ours: Json = json.loads(self.file.path.read_text())

    def put(self, name: str, content: Json) -> None:
        """A file of others."""
        path = self.path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(json.dumps(content))

    def first(self) -> FirstConflist:
        """Follow what is there."""
        first = first_conflist(self.file.path, [self.file.own_part(SUPPORTED_VERSIONS)])
        assert first is not None
        return first


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    """With our conflist of default settings."""
    return Directory(tmp_path)


def multus(**fields: Any) -> Json:
    """Multus, as its agent writes it."""
    return {"cniVersion": "0.3.1", "name": "multus-cni-network", "type": "multus", **fields}


def test_nothing_sorts_first(directory: Directory) -> None:
    """Ours alone, or with a file behind it."""
    directory.put("99-other.conflist", BRIDGE)
    assert first_conflist(directory.file.path, [directory.file.own_part(SUPPORTED_VERSIONS)]) is None


WAYS: dict[str, Callable[[Directory], Json]] = {
    "delegates": lambda at: multus(delegates=[at.ours]),
    "delegates, with more networks": lambda at: multus(delegates=[at.ours, BRIDGE]),
    "the master of the delegates": lambda at: multus(delegates=[{"type": "bridge"}, {**at.ours, "masterplugin": True}]),
    "a single delegate": lambda at: {"type": "meta", "delegate": at.ours},
    "delegates in delegates": lambda at: multus(delegates=[multus(delegates=[multus(delegates=[at.ours])])]),
    "a list with Multus in it": lambda at: {"name": "a", "plugins": [multus(delegates=[at.ours]), {"type": "tuning"}]},
    "our plugin alone": lambda at: multus(delegates=[{"cniVersion": "1.0.0", "name": "x", "type": "vpc-cni"}]),
    "a path": lambda at: multus(clusterNetwork=str(at.file.path)),
    "a path of a container": lambda at: multus(clusterNetwork=f"/host{at.file.path}"),
    "a path of another mount": lambda at: multus(clusterNetwork=f"/cni/{at.file.path.name}"),
    "a name": lambda at: multus(clusterNetwork="vpc-ipamd"),
    "a name, and delegates that are ignored": lambda at: multus(clusterNetwork="vpc-ipamd", delegates=[BRIDGE]),
    "a directory": lambda at: multus(clusterNetwork=str(at.path)),
    "a directory of a container": lambda at: multus(clusterNetwork=f"/host{at.path}/"),
    "a copied list": lambda at: {**at.ours, "plugins": [*at.ours["plugins"], {"type": "istio-cni"}]},
    "a copied list under another name": lambda at: {
        **at.ours,
        "name": "antrea",
        "plugins": [*at.ours["plugins"], {"type": "antrea"}],
    },
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_ways_that_lead_to_us(directory: Directory, way: Callable[[Directory], Json]) -> None:
    """Each is quiet: no line is to be changed."""
    directory.put("00-first.conf", way(directory))
    first = directory.first()
    assert (Path(first.path).name, first.target, first.lines) == ("00-first.conf", Target.OURS, ())


OTHER_WAYS: dict[str, tuple[Callable[[Directory], Json], Target]] = {
    "another CNI": (lambda at: BRIDGE, Target.OTHERS),
    "delegates of another CNI": (lambda at: multus(delegates=[BRIDGE, at.ours]), Target.OTHERS),
    "Multus's daemon, which has its own file": (lambda at: multus(type="multus-shim", logLevel="error"), Target.NOT_KNOWN),
    "the same behind a list": (
        lambda at: {"name": "a", "plugins": [multus(type="multus-shim"), {"type": "x"}]},
        Target.NOT_KNOWN,
    ),
    "the same, which names another CNI": (lambda at: multus(type="multus-shim", delegates=[BRIDGE]), Target.OTHERS),
    "no delegates": (lambda at: multus(delegates=[]), Target.OTHERS),
    "a path of another CNI": (lambda at: multus(clusterNetwork=str(at.path / "99-bridge.conflist")), Target.OTHERS),
    "a name of another CNI": (lambda at: multus(clusterNetwork="other"), Target.OTHERS),
    "itself by its path": (lambda at: multus(clusterNetwork=str(at.path / "00-first.conf")), Target.OTHERS),
    "itself by its name": (lambda at: multus(clusterNetwork="multus-cni-network"), Target.OTHERS),
    "a path that is not there": (lambda at: multus(clusterNetwork="/nowhere/at-all.conf"), Target.NOT_KNOWN),
    "a name that only the cluster knows": (lambda at: multus(clusterNetwork="a-definition"), Target.NOT_KNOWN),
    "fields of wrong kinds": (lambda at: multus(clusterNetwork=7, delegates="x", delegate=[]), Target.OTHERS),
    "entries of wrong kinds": (lambda at: {"name": "x", "plugins": [None, 3, {"type": 5}]}, Target.OTHERS),
    "a name with a zero byte": (lambda at: multus(clusterNetwork="/\0"), Target.NOT_KNOWN),
    "a root": (lambda at: multus(clusterNetwork="/"), Target.NOT_KNOWN),
}


@pytest.mark.parametrize(("way", "target"), OTHER_WAYS.values(), ids=OTHER_WAYS.keys())
def test_ways_that_lead_elsewhere(directory: Directory, way: Callable[[Directory], Json], target: Target) -> None:
    """Or that cannot be seen on the node, which is no proof."""
    directory.put("99-bridge.conflist", BRIDGE)
    directory.put("00-first.conf", way(directory))
    assert directory.first().target is target


def test_a_name_in_the_directory_of_multus(directory: Directory) -> None:
    """`confDir` comes before the runtime's directory, also with a file that leads on."""
    directory.put("multus/other.conf", {"name": "default", "type": "multus", "delegates": [directory.ours]})
    directory.put("99-default.conflist", BRIDGE | {"name": "default"})
    directory.put("00-first.conf", multus(clusterNetwork="default", confDir=str(directory.path / "multus")))
    assert directory.first().target is Target.OURS


def test_a_chain_of_files_is_followed(directory: Directory) -> None:
    """From one to the next, and `steps` has the way."""
    for number in range(20):
        following = str(directory.path / f"0{number + 1:02}.conf") if number < 19 else "vpc-ipamd"
        directory.put(f"0{number:02}.conf", multus(clusterNetwork=following))
    first = directory.first()
    assert first.target is Target.OURS
    assert len(first.steps) == 20 + 19


def test_files_that_lead_in_a_circle_end(directory: Directory) -> None:
    """And so does a chain that is longer than any real one."""
    directory.put("00-a.conf", multus(clusterNetwork=str(directory.path / "01-b.conf")))
    directory.put("01-b.conf", multus(clusterNetwork=str(directory.path / "00-a.conf")))
    assert directory.first().target is Target.OTHERS
    for number in range(STEPS_MAX + 5):
        directory.put(f"00{number:03}.conf", multus(clusterNetwork=str(directory.path / f"00{number + 1:03}.conf")))
    (directory.path / "00-a.conf").unlink()
    assert directory.first().target is Target.NOT_KNOWN


def test_huge_files_and_directories_end(directory: Directory) -> None:
    """A file above a megabyte, fifty of nearly one, a thousand small ones, and one that nests for ever."""
    (directory.path / "big").mkdir()
    for number in range(50):
        (directory.path / "big" / f"{number:03}.conf").write_text(json.dumps({"name": "a", "type": "x", "pad": "x" * 900_000}))
    for number in range(1000):
        (directory.path / "big" / f"z{number:04}.conf").write_text("{}")
    directory.put("00-first.conf", multus(clusterNetwork="other", confDir=str(directory.path / "big")))
    began = time.process_time()
    assert directory.first().target is Target.NOT_KNOWN
    (directory.path / "00-first.conf").write_text("[" * (BYTES_MAX // 2))
    assert directory.first().target is Target.NOT_KNOWN
    nested: Json = directory.ours
    for _ in range(40):
        nested = multus(delegates=[nested])
    directory.put("00-first.conf", nested)
    assert directory.first().target is Target.OURS
    assert time.process_time() - began < 2


def test_a_link_and_a_pipe_hang_nobody(directory: Directory) -> None:
    """A link to ours leads to us; a pipe is no file."""
    (directory.path / "00-first.conflist").symlink_to(directory.file.path)
    assert directory.first().target is Target.OURS
    (directory.path / "00-first.conflist").unlink()
    os.mkfifo(directory.path / "pipe.conf")
    directory.put("00-first.conf", multus(clusterNetwork=str(directory.path / "pipe.conf")))
    assert directory.first().target is Target.NOT_KNOWN


COPIES: dict[str, tuple[Json, str]] = {
    "another version": ({"cniVersion": "0.3.1"}, '"cniVersion": "0.3.1" becomes "cniVersion": "1.0.0"'),
    "no version": ({"cniVersion": None}, '"cniVersion": null becomes "cniVersion": "1.0.0"'),
    "versions that we do not offer": (
        {"cniVersions": ["1.0.0", "1.1.0"]},
        '"cniVersions": ["1.0.0", "1.1.0"] becomes "cniVersions": ["0.3.1", "0.4.0", "1.0.0", "1.1.0"]',
    ),
    "other capabilities": (
        {"plugins": [{"type": "vpc-cni", "capabilities": {"bandwidth": True}}]},
        'in the entry of vpc-cni: "capabilities": {"bandwidth": true} becomes no "capabilities"',
    ),
    "ours behind another": ({"plugins": [{"type": "tuning"}, {"type": "vpc-cni"}]}, "make vpc-cni the first of plugins"),
}


@pytest.mark.parametrize(("changes", "line"), COPIES.values(), ids=COPIES.keys())
@pytest.mark.parametrize("is_delegate", [False, True])
def test_a_copy_that_differs_has_a_line_to_change(directory: Directory, changes: Json, line: str, *, is_delegate: bool) -> None:
    """It leads to us, and the line says which file, what is there, and what must be there."""
    copy = {**directory.ours, **changes}
    directory.put("00-first.conf", multus(delegates=[copy]) if is_delegate else copy)
    first = directory.first()
    assert first.target is Target.OURS
    assert first.lines == (f"{directory.path}/00-first.conf: {line}",)


def test_a_copy_without_versions_is_called_in_its_one(directory: Directory) -> None:
    """Multus drops `cniVersions`; what is left is right."""
    copy = {key: value for key, value in directory.ours.items() if key != "cniVersions"}
    directory.put("00-first.conf", multus(delegates=[copy]))
    assert directory.first().lines == ()


def test_a_copy_of_before_our_settings_changed(tmp_path: Path) -> None:
    """A plugin that we chain now is missing, and Multus does not ask the runtime for what it needs."""
    directory = Directory(tmp_path, portmap=True)
    copy = {**directory.ours, "plugins": [{"type": "vpc-cni"}]}
    directory.put("00-first.conf", multus(delegates=[copy]))
    wanted = '{"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}'
    assert directory.first().lines == (
        f"{directory.path}/00-first.conf: add to plugins, behind vpc-cni: {wanted}",
        f'{directory.path}/00-first.conf: no "capabilities" becomes "capabilities": {{"portMappings": true}}',
    )


@pytest.mark.parametrize("way", ["delegates", "clusterNetwork"])
def test_multus_must_ask_for_our_capabilities(tmp_path: Path, way: str) -> None:
    """A runtime hands them over to the configuration that it reads itself."""
    directory = Directory(tmp_path, bandwidth=True)
    target: Any = [directory.ours] if way == "delegates" else "vpc-ipamd"
    directory.put("00-first.conf", multus(**{way: target}, capabilities={"mac": True}))
    (line,) = directory.first().lines
    assert line.endswith('"capabilities": {"mac": true} becomes "capabilities": {"mac": true, "bandwidth": true}')
    directory.put("00-first.conf", multus(**{way: target}, capabilities={"mac": True, "bandwidth": True}))
    assert directory.first().lines == ()


def test_multus_hands_over_no_annotations(tmp_path: Path) -> None:
    """Whatever it asks the runtime for, so the facts about pods must come from elsewhere."""
    path = tmp_path / "net.d" / "10-vpc-ipamd.conflist"
    file = ConflistFile(load({"VPC_IPAMD_CONFLIST_FILE": str(path), "ENABLE_POD_ENI": "true"}))
    file.write(SUPPORTED_VERSIONS)
    asked = {"io.kubernetes.cri.pod-annotations": True}
    path.with_name("00-first.conf").write_text(json.dumps(multus(clusterNetwork="vpc-ipamd", capabilities=asked)))
    first = first_conflist(path, [file.own_part(SUPPORTED_VERSIONS)])
    assert first is not None
    assert first.lines == (f"{path.with_name('00-first.conf')}: {NO_ANNOTATIONS}",)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    """A keeper whose directory others use."""
    return Kept(tmp_path, FakeClock())


@pytest.mark.parametrize(
    ("content", "subject"),
    [
        (multus(clusterNetwork="vpc-ipamd"), None),
        (BRIDGE, OTHER_FIRST),
        (multus(clusterNetwork="a-definition"), NOT_FOLLOWED),
        (multus(delegates=[{"cniVersion": "0.3.1", "name": "x", "type": "vpc-cni"}]), STALE_COPY),
    ],
)
def test_conditions(kept: Kept, content: Json, subject: str | None) -> None:
    """One for each kind of fault, a fact for what is none, and both end with the file."""
    path = kept.path.with_name("00-first.conf")
    path.write_text(json.dumps(content))
    kept.keeper.check()
    assert set(kept.health.conditions_by_subject()) == ({subject} if subject else set())
    is_led = subject in (None, STALE_COPY)
    assert [(seen.kind, seen.name) for seen in kept.companions.seen] == ([(CompanionKind.FIRST, str(path))] if is_led else [])
    path.unlink()
    kept.keeper.check()
    assert (kept.health.conditions(), kept.companions.seen) == ([], ())


@pytest.mark.parametrize("has_own", [True, False])
def test_a_copy_may_offer_what_ours_would_without_the_appended_plugin(kept: Kept, has_own: bool) -> None:
    """The copy may have been made before that plugin came, and without it."""
    before = json.loads(kept.path.read_text())
    put(kept.bin / "mesh-cni", OLD)
    kept.path.write_text(json.dumps({**before, "plugins": [*before["plugins"], {"type": "mesh-cni"}]}))
    put(kept.bin / "vpc-cni", NEW)
    kept.keeper.check()
    copy = before if has_own else json.loads(kept.path.read_text())
    kept.path.with_name("00-first.conflist").write_text(json.dumps(copy))
    kept.keeper.check()
    assert kept.health.conditions() == []
