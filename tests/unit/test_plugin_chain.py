"""ADD is refused while a plugin of the chain is in none of the runtime's directories, and on nothing less than a proof (I11)."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ipamd.host import plugin_chain
from ipamd.host.first_conflist import followed_chain
from ipamd.host.plugin_chain import PluginChain
from ipamd.model.errors import ChainedPluginMissingError, cause_of
from ipamd.model.refusals import RefusalCode, refusal
from ipamd.settings import DaemonConfig, Settings


class Host:
    """A directory of configurations and two of plugins, of which the first has ours. `said`, `directories`: of the last refusal."""

    said: str
    directories: tuple[str, ...]

    def __init__(self, root: Path) -> None:
        self.conf, self.first, self.second = (root / name for name in ("net.d", "first", "second"))
        for directory in (self.conf, self.first, self.second):
            directory.mkdir()
        (self.first / "vpc-cni").write_text("")
        settings = Settings(daemon=DaemonConfig(conflist_path=self.conf / "10-vpc-ipamd.conflist"))
        self.chain = PluginChain(self.conf, followed=lambda: followed_chain(settings))
        self.write("10-vpc-ipamd.conflist", "vpc-cni", "portmap", "istio-cni")

    def write(self, name: str, *types: str) -> None:
        """Write a list with these plugins."""
        (self.conf / name).write_text(json.dumps({"name": "vpc-ipamd", "plugins": [{"type": kind} for kind in types]}))

    def install(self, *names: str, directory: Path | None = None) -> None:
        """Put plugins in place."""
        for name in names:
            ((directory or self.first) / name).write_text("")

    def missing(self, *directories: Path | str) -> tuple[str, ...]:
        """The plugins for which ADD is refused."""
        asked = directories or (self.first, self.second)
        try:
            self.chain.require_plugins([str(directory) for directory in asked])
        except ChainedPluginMissingError as error:
            self.said, self.directories = str(error), tuple(error.fields["directories"].split(", "))
            return tuple(error.fields["plugins"].split(", "))
        return ()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """One."""
    return Host(tmp_path)


def test_the_error_is_typed() -> None:
    """The runtime may try again, and metrics name the cause."""
    error = refusal(RefusalCode.CHAIN_INCOMPLETE, plugins="a", directories="/opt/cni/bin")
    assert (error.cni_code, error.retryable, cause_of(error)) == (11, True, "chained-plugin-missing")


def test_all_that_is_missing_is_named_and_it_ends_at_once(host: Host) -> None:
    """In the order of the chain; the next ADD after the file is back is served."""
    assert host.missing() == ("portmap", "istio-cni")
    assert host.directories == (str(host.first), str(host.second))
    assert all(name in host.said for name in ("portmap", "istio-cni", *host.directories))
    host.install("portmap")
    assert host.missing() == ("istio-cni",)
    host.install("istio-cni", directory=host.second)
    assert host.missing() == ()
    (host.second / "istio-cni").unlink()
    assert host.missing() == ("istio-cni",)


def test_only_the_runtimes_directories_count(host: Host) -> None:
    """A plugin where the runtime does not look is missing; where it looks first, second or last does not matter."""
    host.install("portmap", "istio-cni", directory=host.second)
    assert host.missing(host.first) == ("portmap", "istio-cni")
    assert host.missing(host.second, host.first) == ()


def test_no_directories_prove_nothing(host: Host) -> None:
    """A caller that does not say where it looks."""
    host.chain.require_plugins([])


def test_a_directory_that_is_gone_has_no_plugin(host: Host) -> None:
    """On the host itself."""
    assert host.missing(host.first, "/nonexistent/bin") == ("portmap", "istio-cni")


def test_without_our_own_plugin_we_do_not_see_the_hosts(host: Host) -> None:
    """The runtime has just run it from one of these: what the daemon sees there is its own image's."""
    (host.first / "vpc-cni").unlink()
    assert host.missing() == ()


def test_in_a_container_only_what_is_mounted_counts(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second directory is not mounted into it, or is of its own image: the plugin may be there on the host."""
    monkeypatch.setattr(Path, "is_mount", lambda path: path == host.first)
    assert host.missing(host.first) == ("portmap", "istio-cni")
    assert host.missing(host.first, "/nonexistent/bin") == ()
    assert host.missing(host.first, "/proc") == ()


@pytest.mark.parametrize("replace", ["link", "dangling link"])
def test_a_link_may_lead_to_what_only_the_host_has(host: Host, replace: str) -> None:
    """It is no proof."""
    host.install("portmap")
    target = host.first / "portmap" if replace == "link" else Path("/nonexistent/istio-cni")
    (host.first / "istio-cni").symlink_to(target)
    assert host.missing() == ()


def test_a_directory_in_its_place_is_no_plugin(host: Host) -> None:
    """libcni takes regular files only."""
    host.install("portmap")
    (host.first / "istio-cni").mkdir()
    assert host.missing() == ("istio-cni",)


def rewritten(host: Host) -> None:
    """Another software takes its plugin out of our file."""
    host.write("10-vpc-ipamd.conflist", "vpc-cni", "portmap")


def copied(host: Host) -> None:
    """A file that sorts first copies our chain without the plugin."""
    host.write("05-multus.conflist", "vpc-cni", "portmap")


def delegated(host: Host) -> None:
    """A file that sorts first leads to a copy of our chain without the plugin."""
    copy = {"name": "vpc-ipamd", "plugins": [{"type": "vpc-cni"}, {"type": "portmap"}]}
    (host.conf / "00-multus.conf").write_text(json.dumps({"type": "multus", "delegates": [copy]}))


def unclear(host: Host) -> None:
    """A file that sorts first leads to a network that the node's files do not show."""
    (host.conf / "00-multus.conf").write_text(json.dumps({"type": "multus", "clusterNetwork": "a-definition"}))


def removed(host: Host) -> None:
    """There is no file."""
    (host.conf / "10-vpc-ipamd.conflist").unlink()


def broken(host: Host) -> None:
    """No runtime can load the file."""
    (host.conf / "10-vpc-ipamd.conflist").write_text("{")


def of_paths(host: Host) -> None:
    """Types that no runtime looks up."""
    host.write("10-vpc-ipamd.conflist", "vpc-cni", "portmap", "../istio-cni", "")


@pytest.mark.parametrize(
    "change", [rewritten, copied, delegated, unclear, removed, broken, of_paths], ids=lambda change: change.__name__
)
def test_the_chain_is_the_one_in_the_file_that_the_runtime_takes(host: Host, change: Callable[[Host], None]) -> None:
    """What is not in it, or not known, refuses nothing; a change is seen at the next ADD."""
    host.install("portmap")
    assert host.missing() == ("istio-cni",)
    change(host)
    assert host.missing() == ()


@pytest.mark.parametrize("way", ["name", "path", "delegates"])
def test_a_file_that_leads_to_our_chain_is_followed(host: Host, way: str) -> None:
    """Multus runs our list: a missing plugin of it fails there in the same way. A change of the list is seen within a second."""
    ours = host.conf / "10-vpc-ipamd.conflist"
    multus = {"type": "multus", "clusterNetwork": "vpc-ipamd" if way == "name" else str(ours)}
    if way == "delegates":
        multus = {"type": "multus", "delegates": [json.loads(ours.read_text())]}
    (host.conf / "00-multus.conf").write_text(json.dumps(multus))
    assert host.missing() == ("portmap", "istio-cni")
    host.install("portmap", "istio-cni")
    assert host.missing() == ()


def test_a_list_that_is_followed_is_read_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file may be in another directory, whose times nobody compares: it is followed once in a second, not at each ADD."""
    (host.conf / "00-multus.conf").write_text(json.dumps({"type": "multus", "clusterNetwork": "vpc-ipamd"}))
    now_s = time.time()
    monkeypatch.setattr(plugin_chain.time, "time", lambda: now_s)
    monotonic_s = [1000.0]
    monkeypatch.setattr(plugin_chain.time, "monotonic", lambda: monotonic_s[0])
    for path in (host.conf / "00-multus.conf", host.conf):
        set_time(path, now_s - 60.0)
    host.install("portmap")
    assert host.missing() == ("istio-cni",)
    rewritten(host)
    set_time(host.conf, now_s - 60.0)
    assert host.missing() == ("istio-cni",)
    monotonic_s[0] += 1.0
    assert host.missing() == ()


def test_files_that_no_runtime_loads_are_passed_over(host: Host) -> None:
    """A broken file, a hidden one and another suffix before ours."""
    (host.conf / "00-broken.conflist").write_text("{")
    (host.conf / "01-readme.txt").write_text("{}")
    (host.conf / "02-empty.conf").write_text("{}")
    assert host.missing() == ("portmap", "istio-cni")


def set_time(path: Path, at_s: float) -> None:
    """As if the path had been changed then."""
    os.utime(path, (at_s, at_s))


@pytest.mark.parametrize(("age_s", "reads_expected"), [(60.0, 1), (0.0, 5)], ids=["settled", "changed just now"])
def test_the_file_is_read_once_when_its_time_can_show_a_change(
    host: Host, monkeypatch: pytest.MonkeyPatch, age_s: float, reads_expected: int
) -> None:
    """ADD costs a few stats. A file of this instant is read again, because another change may have the same time."""
    now_s = time.time()
    monkeypatch.setattr(plugin_chain.time, "time", lambda: now_s)
    reads: list[str] = []
    read = plugin_chain.content_of
    monkeypatch.setattr(plugin_chain, "content_of", lambda path: reads.append(path) or read(path))
    for path in (host.conf / "10-vpc-ipamd.conflist", host.conf):
        set_time(path, now_s - age_s)
    for _ in range(5):
        host.missing()
    assert len(reads) == reads_expected
