"""Rows from before amazon-vpc-cni-k8s ran are set aside when the adapters are connected; an export ends with that."""

from __future__ import annotations

from ipaddress import IPv4Address
from pathlib import Path

from ipamd.model.aws_node import Allocation, render_checkpoint
from ipamd.model.ids import parse_key
from ipamd.process.adapters import Adapters, connect
from ipamd.settings import CurrentSettings, DaemonConfig, RuntimeConfig, Settings, TakeoverConfig

ONE = Allocation(parse_key("a", "eth0"), IPv4Address("10.0.0.9"), "default", "web", 5)


def start(place: Path) -> Adapters:
    """One start's adapters, with the datastore closed again."""
    daemon = DaemonConfig(run_dir=place, conflist_path=place / "10-vpc-ipamd.conflist", history_dir="off")
    takeover = TakeoverConfig(checkpoint=place / "ipam.json", daemon_socket="off")
    settings = Settings(daemon=daemon, runtime=RuntimeConfig(cri_socket="off"), takeover=takeover)
    made = connect(CurrentSettings(settings), has_run_before=False)
    made.opened.datastore.close()
    return made


def set_aside(place: Path) -> list[Path]:
    """Datastores that were."""
    return list(place.glob("state.db.overtaken-*"))


def write_theirs(place: Path) -> None:
    """Its daemon writes its file anew."""
    (place / "scratch").write_bytes(render_checkpoint([ONE]))
    (place / "scratch").replace(place / "ipam.json")


def test_rows_are_kept_while_nobody_else_wrote(tmp_path: Path) -> None:
    """Starts of a node that was never the other's."""
    for _ in range(2):
        made = start(tmp_path)
        assert (made.is_overtaken, made.has_run_before) == (False, False)
    assert set_aside(tmp_path) == []


def test_rows_from_before_are_set_aside_and_free_addresses_cool(tmp_path: Path) -> None:
    """`has_run_before` is what makes addresses of a lost datastore cool (I8); what the other writes lifts no export (I20)."""
    start(tmp_path)
    write_theirs(tmp_path)
    made = start(tmp_path)
    assert made.aws_node is not None
    made.aws_node.finish()
    assert (made.is_overtaken, made.has_run_before) == (True, True)
    assert len(set_aside(tmp_path)) == 1
    made.aws_node.begin_export()
    made.aws_node.write([ONE], routed=())
    again = start(tmp_path)
    assert again.aws_node is not None
    assert (again.is_overtaken, again.aws_node.is_exporting) == (False, True), "a restart in between changes nothing"
    write_theirs(tmp_path)
    for _ in range(2):
        held = start(tmp_path)
        assert held.aws_node is not None
        assert (held.is_overtaken, held.aws_node.is_exporting) == (False, True), "its daemon came, and ours is still there"
    held.aws_node.end_export()
    last = start(tmp_path)
    assert last.aws_node is not None
    assert (last.is_overtaken, last.aws_node.is_exporting) == (True, False)


def test_a_first_start_on_its_node_lets_addresses_cool(tmp_path: Path) -> None:
    """There are no rows to set aside, but addresses that its pods had a moment ago."""
    write_theirs(tmp_path)
    assert start(tmp_path).has_run_before
    assert set_aside(tmp_path) == []
