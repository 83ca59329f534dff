"""Who the node is outlives the daemon: a restart while instance metadata is silent repairs the node's routing all the same (I12)."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from ipaddress import IPv4Network

import pytest

from ipamd.datastore import schema
from ipamd.model.errors import CloudError
from ipamd.model.repairs import TRANSLATION, RepairCode
from tests.fakes.cloud import IDENTITY
from tests.fakes.node import FakeNode


def _restart_in_silence(node: FakeNode) -> None:
    node.metadata.fail = [CloudError("instance metadata does not answer")] * 100
    node.crash()
    with pytest.raises(CloudError):
        node.node_info.learn_identity()


def test_what_metadata_said_last_is_known_after_a_restart(node: FakeNode) -> None:
    """Also what changed while the daemon ran: SNAT goes by the VPC's CIDRs."""
    node.metadata.told = replace(IDENTITY, vpc_cidrs=(*IDENTITY.vpc_cidrs, IPv4Network("100.64.0.0/16")))
    node.node_info.learn_identity()
    _restart_in_silence(node)
    assert node.node_info.identity() == node.metadata.told
    assert node.node_info.refresh_identity() == node.metadata.told
    assert node.node_info.region() == IDENTITY.region


def test_a_table_that_went_meanwhile_comes_back(node: FakeNode) -> None:
    """The node's own nftables tables, and the wiring of sandboxes, need the kernel and what is recorded."""
    _restart_in_silence(node)
    node.hostnet.is_table_lost = True
    node.startup.reconcile_kernel(node.wiring.survey(), node.listed())
    assert (RepairCode.ADDED, TRANSLATION) in [(one.code, one.object) for one in node.app.host_network.reconcile()]


def test_it_is_written_only_when_it_changes(node: FakeNode) -> None:
    """Metadata is asked every minute."""
    recorded = node.datastore.identity()
    node.node_info.learn_identity()
    assert node.datastore.identity() is recorded


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"instance_id": "i-1"}', '{"unknown": 1}'])
def test_what_this_release_does_not_understand_is_not_known(node: FakeNode, text: str) -> None:
    """Nothing else of the datastore is lost for it; metadata says it again."""
    kept = node.add("kept").key
    node.datastore.close()
    with sqlite3.connect(node.run_dir / "state.db") as edited:
        edited.execute("UPDATE meta SET value = ? WHERE name = ?", (text, schema.IDENTITY))
    edited.close()
    node.crash()
    assert node.opened.report.is_sound
    assert node.node_info.identity() is None
    assert node.datastore.attachment(kept) is not None
    assert node.node_info.learn_identity() == IDENTITY == node.datastore.identity()


def test_it_is_not_believed_in_another_boot(node: FakeNode) -> None:
    """An instance that was stopped may start in another shape: the file of a former boot is never used."""
    node.crash(keep_datastore=False)
    assert node.datastore.identity() is None
