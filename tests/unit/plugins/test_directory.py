"""What is needed beside our plugin, asked once for each file, and what is said when it is lacking."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ipamd.host.plugins import ASK_AGAIN_S, ChainVersions, PluginDirectory
from ipamd.model.cni_versions import SUPPORTED_VERSIONS
from ipamd.model.errors import PluginLackingError
from tests.fakes.clock import FakeClock

OLD = ("0.1.0", "0.3.1", "0.4.0", "1.0.0")


class Asked:
    """A node's directory; plugins answer with the words in their file, or refuse if there are none."""

    def __init__(self, folder: Path, *, chained: tuple[str, ...] = ("portmap",), bundled: frozenset[str] = frozenset()) -> None:
        self.folder = folder
        self.clock = FakeClock()
        self.runs: Counter[str] = Counter()
        self.needs_loopback = True
        self.put("vpc-cni", SUPPORTED_VERSIONS)
        self.directory = PluginDirectory(
            folder,
            own_plugin="vpc-cni",
            chained=chained,
            bundled=lambda: bundled,
            needs_loopback=lambda: self.needs_loopback,
            clock=self.clock,
            ask=self._ask,
        )

    def put(self, name: str, versions: tuple[str, ...]) -> None:
        """A new file."""
        (self.folder / "new").write_text(" ".join(versions))
        (self.folder / "new").replace(self.folder / name)

    def lacking(self, hindrance: str = "") -> str:
        """What a look complains of."""
        with pytest.raises(PluginLackingError) as caught:
            self.directory.ask_needed(hindrance)
        return str(caught.value)

    def _ask(self, path: Path) -> tuple[str, ...]:
        self.runs[path.name] += 1
        versions = tuple(path.read_text().split())
        if not versions:
            raise PluginLackingError(f"{path} refused", details="mend it")
        return versions


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    """A node with a good loopback and an old portmap."""
    made = Asked(tmp_path)
    made.put("loopback", SUPPORTED_VERSIONS)
    made.put("portmap", OLD)
    return made


def test_what_all_speak(asked: Asked) -> None:
    """Of the chained ones: loopback is called in a version of the runtime's own, so it limits nothing."""
    asked.put("loopback", ("0.3.1",))
    assert asked.directory.ask_needed() == ChainVersions(("0.3.1", "0.4.0", "1.0.0"), ("portmap ends at 1.0.0",))


def test_a_file_is_asked_once(asked: Asked) -> None:
    """A hundred looks run each plugin once; a changed file is asked again, the others are not."""
    for _ in range(100):
        asked.directory.ask_needed()
    asked.put("portmap", SUPPORTED_VERSIONS)
    assert asked.directory.ask_needed() == ChainVersions(SUPPORTED_VERSIONS)
    assert asked.runs == {"vpc-cni": 1, "loopback": 1, "portmap": 2}


def test_a_mode_that_changed_is_noticed(asked: Asked) -> None:
    """chmod changes no content, but whether it can be run."""
    asked.directory.ask_needed()
    (asked.folder / "portmap").chmod(0o600)
    asked.directory.ask_needed()
    assert asked.runs["portmap"] == 2


def test_one_that_refuses_is_asked_again_after_a_while(asked: Asked) -> None:
    """Not at every look, because it may hang each time; its file being the same, the node may have been busy."""
    asked.put("portmap", ())
    for _ in range(10):
        assert asked.lacking() == f"{asked.folder / 'portmap'} refused: mend it"
        asked.clock.advance(ASK_AGAIN_S / 10 - 0.1)
    assert asked.runs["portmap"] == 1
    asked.clock.advance(2)
    asked.lacking()
    assert asked.runs["portmap"] == 2


def test_all_that_is_lacking_is_named_at_once(asked: Asked) -> None:
    """Each with what to do."""
    for name in ("vpc-cni", "loopback"):
        (asked.folder / name).unlink()
    asked.put("portmap", ())
    told = asked.lacking()
    assert f"{asked.folder / 'vpc-cni'} is missing, and no pod can be made without it: restart the daemon's pod" in told
    assert f"{asked.folder / 'loopback'} is missing: put it there" in told
    assert f"{asked.folder / 'portmap'} refused" in told


def test_one_that_comes_with_us_and_is_missing(tmp_path: Path) -> None:
    """Why it could not be put in place is said, and what to do."""
    made = Asked(tmp_path, chained=(), bundled=frozenset({"loopback"}))
    told = made.lacking("/opt/cni/bin: Read-only file system")
    assert told == (
        f"{tmp_path / 'loopback'} is missing and could not be put in place (/opt/cni/bin: Read-only file system): "
        "mount the directory so that it can be written"
    )


def test_one_that_is_fought_over_is_not_a_matter_of_mounts(tmp_path: Path) -> None:
    """Nothing hinders us but somebody who removes it."""
    made = Asked(tmp_path, chained=(), bundled=frozenset({"loopback"}))
    assert (
        made.lacking()
        == f"{tmp_path / 'loopback'} is missing: something removes it whenever it is put in place; it is tried again"
    )


def test_a_link_to_nothing_is_told(tmp_path: Path) -> None:
    """It is somebody's, so nothing is put in its place; that the directory cannot be written would be wrong."""
    made = Asked(tmp_path, chained=(), bundled=frozenset({"loopback"}))
    (tmp_path / "loopback").symlink_to("nowhere")
    assert made.lacking() == f"{tmp_path / 'loopback'} is a link to a file that is missing: mend the link, or remove it"


def test_loopback_is_needed_where_the_runtime_runs_it(asked: Asked) -> None:
    """And then it must speak the version in which containerd calls it."""
    asked.put("loopback", ("1.0.0",))
    assert "does not speak 0.3.1" in asked.lacking()
    asked.needs_loopback = False
    (asked.folder / "loopback").unlink()
    assert asked.directory.ask_needed().versions[-1] == "1.0.0"


def test_a_chain_without_a_common_version(tmp_path: Path) -> None:
    """Who speaks what is said."""
    made = Asked(tmp_path, chained=("a", "b"))
    made.needs_loopback = False
    made.put("a", ("0.4.0",))
    made.put("b", ("1.0.0", "1.1.0"))
    told = made.lacking()
    assert "is spoken by all chained plugins: a 0.4.0, b 1.0.0/1.1.0" in told


def test_nothing_chained(tmp_path: Path) -> None:
    """Only ours is asked, and everything is offered."""
    made = Asked(tmp_path, chained=())
    made.needs_loopback = False
    assert made.directory.ask_needed() == ChainVersions(SUPPORTED_VERSIONS)
    assert made.runs == {"vpc-cni": 1}


def test_what_cannot_be_looked_at_is_told(tmp_path: Path) -> None:
    """A loop of links, for example."""
    made = Asked(tmp_path)
    made.needs_loopback = False
    (tmp_path / "portmap").symlink_to("portmap")
    assert "cannot be looked at: " in made.lacking()
