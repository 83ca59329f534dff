"""A node starts though something else stands in the places of its run directory and its history (I3, I14)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ipamd.datastore.set_aside import FILES
from ipamd.history.age import FILE_NAME as AGES
from ipamd.settings.places import DIRECTORY, PLACES, PREFIX
from tests.patience import PATIENCE_S
from tests.rig import Rig, rig
from tests.unit.settings.test_places import make_directory, make_file, make_link

pytestmark = [pytest.mark.privileged, pytest.mark.slow]

HISTORY = "/var/lib/vpc-ipamd/history"
HISTORY_PLACES = (AGES, "ages.tmp", "history-00000001.jsonl", "refused-00000001.jsonl")


def stop(made: Rig) -> None:
    """End the daemon as its supervisor does."""
    assert made.daemon is not None
    made.daemon.send_signal(signal.SIGTERM)
    made.daemon.wait(PATIENCE_S)


def occupy(directory: Path, name: str, make: Callable[[Path], None]) -> None:
    """Put something in a place from which what was there is moved out of the way."""
    path = directory / name
    if os.path.lexists(path):
        path.rename(directory.parent / f"was-{name}")
    make(path)


@pytest.mark.parametrize("make", [make_file, make_directory, make_link, os.mkfifo])
def test_every_place_at_once(make: Callable[[Path], None]) -> None:
    """The daemon becomes ready, serves ADD and DEL, carries out what the plugin spools later, and names all that it moved."""
    with rig(start=False, env={"VPC_IPAMD_HISTORY_DIR": HISTORY}) as made:
        run_dir, history = Path(made.node.root + "/run/vpc-ipamd"), Path(made.node.root + HISTORY)
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        history.mkdir(parents=True, exist_ok=True)
        taken = [name for name, belongs in PLACES.items() if (make is make_file) == (belongs == DIRECTORY)]
        if make in (make_link, os.mkfifo):
            taken = list(PLACES)
        for name in taken:
            occupy(run_dir, name, make)
        if make is not make_file:
            for suffix in FILES[:2]:
                occupy(run_dir, f"state.db{suffix}", make)
            for name in HISTORY_PLACES:
                occupy(history, name, make)
        made.start()
        assert made.add("a").ok
        assert made.delete("a").ok
        log = made.log_tail(10_000)
        for name in taken:
            assert f'"path":"/run/vpc-ipamd/{name}"' in log
        assert len(list(run_dir.glob(f"{PREFIX}*"))) == len(taken)
        assert made.add("b").ok
        stop(made)
        assert made.delete("b").ok  # spooled
        assert list((run_dir / "spool").glob("del-*"))
        made.start()
        made.assert_sound(expected=0)


def test_a_file_in_the_spools_place_while_the_daemon_is_away_costs_no_del() -> None:
    """DEL is an error that names it and is repeated; the next daemon makes room and does it."""
    with rig() as made:
        assert made.add("a").ok
        stop(made)
        run_dir = Path(made.node.root + "/run/vpc-ipamd")
        occupy(run_dir, "spool", make_file)
        reply = made.cni("DEL", "a")
        assert reply.body is not None
        assert (reply.status, reply.body["code"]) == (1, 191)
        assert "/run/vpc-ipamd/spool" in reply.body["msg"] + reply.body["details"]
        made.start()
        assert made.delete("a").ok
        made.assert_sound(expected=0)
