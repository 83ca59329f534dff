"""Names that the network policy agent may know: rows of their own, which outlive the process and go with its answer (I21)."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from ipamd.datastore.store import SqlDatastore
from ipamd.model.errors import DatastoreError
from ipamd.model.ids import PodName
from tests.unit.datastore.support import START, FakeClock, crashed_copy, open_at, raw

WEB, OTHER = PodName("default", "web-0"), PodName("kube-system", "web-0")


def owe(store: SqlDatastore, *names: PodName) -> None:
    """In one unit of work."""
    with store.transaction() as unit:
        for name in names:
            unit.record_policy_pod(name)


def test_owed_until_it_is_forgotten(path: Path, store: SqlDatastore, clock: FakeClock, tmp_path: Path) -> None:
    """A name is a pod's with its namespace; owed twice it is so since the first time; a kill changes nothing."""
    owe(store, WEB)
    clock.pause(60)
    owe(store, WEB, OTHER)
    expected = {WEB: START, OTHER: START + timedelta(seconds=60)}
    assert store.policy_pods() == expected
    assert store.audit() == []
    killed = open_at(crashed_copy(path, tmp_path / "killed")).datastore
    assert killed.policy_pods() == expected
    with killed.transaction() as unit:
        unit.erase_policy_pod(WEB)
        unit.erase_policy_pod(PodName("default", "nobody"))
    assert killed.policy_pods().keys() == killed.snapshot().policy_pods.keys() == {OTHER}
    killed.close()


def test_nothing_is_owed_of_a_unit_that_fails(store: SqlDatastore) -> None:
    """Neither in memory nor on disk."""

    def refused() -> None:
        with store.transaction() as unit:
            unit.record_policy_pod(WEB)
            raise DatastoreError("refused")

    with pytest.raises(DatastoreError):
        refused()
    assert store.policy_pods() == {}
    assert store.audit() == []


def test_the_audit_compares_them(path: Path, store: SqlDatastore) -> None:
    """A row that memory lacks is a difference."""
    owe(store, WEB)
    store.rows.policy_pods.clear()
    assert store.audit() == ["policy pod default/web-0 is on disk but not in memory"]


@pytest.mark.parametrize("was_lost", [False, True])
def test_a_loss_is_remembered(path: Path, store: SqlDatastore, was_lost: bool) -> None:
    """For the life of the file: no source tells whom the agent knew before."""
    with store.transaction() as unit:
        unit.mark_restored(detail="", was_lost=was_lost)
    with store.transaction() as unit:
        unit.mark_restored(detail="")
    store.close()
    again = open_at(path)
    assert again.report.is_intact
    assert again.datastore.snapshot().was_lost == was_lost
    again.datastore.close()


def test_a_name_that_is_none_of_ours(path: Path, store: SqlDatastore) -> None:
    """A damaged time sets the file aside, as any value that is none of ours."""
    owe(store, WEB)
    store.close()
    raw(path, "UPDATE owed SET since = 'yesterday'")
    assert open_at(path).report.outcome == "corrupt"
