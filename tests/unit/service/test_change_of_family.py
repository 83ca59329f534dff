"""After a drain a node may change its family, whatever sandboxes it had: what the drain left is read first (I2)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ipamd.datastore import schema
from ipamd.datastore.open import OpenedDatastore, OpenOutcome, open_datastore
from ipamd.model.errors import DatastoreError, KernelDumpError
from ipamd.model.failures import FailureCode
from ipamd.model.family import IPV6
from ipamd.model.kernel import KernelSurvey
from ipamd.pb import cni_pb2
from tests.errors import failed
from tests.fakes.node import BOOT_ID, FakeNode


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    """It was adopted from the kernel, so nobody knows where its namespace was; and its daemon has ended."""
    made = FakeNode(tmp_path)
    made.bring_up()
    made.add("pod")
    made.runtime.run("pod")
    made.crash(keep_datastore=False)
    made.bring_up()
    (row,) = made.datastore.attachments()
    assert not row.netns
    made.datastore.close()
    return made


def open_ipv6(node: FakeNode, *, asks_kernel: bool = False) -> OpenedDatastore:
    """The start of a daemon of the other family."""
    return open_datastore(
        node.run_dir / "state.db",
        boot_id=BOOT_ID,
        clock=node.clock,
        family=IPV6,
        survey_kernel=node.wiring.survey if asks_kernel else None,
    )


def spool_del(node: FakeNode, container_id: str) -> Path:
    """The plugin got no answer."""
    directory = node.run_dir / "spool"
    directory.mkdir(exist_ok=True)
    request = cni_pb2.ExecRequest(verb="DEL", container_id=container_id, ifname="eth0")
    path = directory / f"del-{container_id}-1000000"
    path.write_bytes(request.SerializeToString())
    return path


def test_a_spooled_del_ends_a_sandbox(node: FakeNode) -> None:
    """No daemon runs that could carry it out; it stays in the spool for the one that starts now."""
    with pytest.raises(DatastoreError, check=failed(FailureCode.FILE_OF_OTHER_FAMILY)):
        open_ipv6(node)
    other = spool_del(node, "other")
    with pytest.raises(DatastoreError, check=failed(FailureCode.FILE_OF_OTHER_FAMILY)):
        open_ipv6(node)
    other.write_bytes(b"damaged")
    spooled = spool_del(node, "pod")
    opened = open_ipv6(node)
    opened.datastore.close()
    assert opened.report.outcome is OpenOutcome.OTHER_FAMILY
    assert spooled.exists()


def test_a_sandbox_that_left_nothing_in_the_kernel_has_ended(node: FakeNode) -> None:
    """Its DEL may have been carried out by nobody: a veth pair dies with its namespace."""
    with pytest.raises(DatastoreError, check=failed(FailureCode.FILE_OF_OTHER_FAMILY)):
        open_ipv6(node, asks_kernel=True)
    node.wiring.wired.clear()
    with pytest.raises(DatastoreError, check=failed(FailureCode.FILE_OF_OTHER_FAMILY)):
        open_ipv6(node, asks_kernel=True)  # a route leads to its address still
    node.wiring.routes.clear()
    opened = open_ipv6(node, asks_kernel=True)
    opened.datastore.close()
    assert opened.report.outcome is OpenOutcome.OTHER_FAMILY


def test_a_kernel_that_does_not_answer_is_no_evidence(node: FakeNode) -> None:
    """Silence keeps (I11)."""

    def refuse() -> KernelSurvey:
        raise KernelDumpError("interrupted")

    with pytest.raises(DatastoreError, check=failed(FailureCode.FILE_OF_OTHER_FAMILY)):
        open_datastore(node.run_dir / "state.db", boot_id=BOOT_ID, clock=node.clock, family=IPV6, survey_kernel=refuse)


def test_a_file_of_a_later_release_goes_with_its_boot(node: FakeNode) -> None:
    """The refusal says to reboot the node: then the file is set aside, also where the directory outlives a boot."""
    path = node.run_dir / "state.db"
    with closing(sqlite3.connect(path)) as file:
        file.execute(f"PRAGMA user_version = {schema.SCHEMA_VERSION + 1}")
        file.commit()
    with pytest.raises(DatastoreError, check=failed(FailureCode.SCHEMA_TOO_NEW)):
        open_datastore(path, boot_id=BOOT_ID, clock=node.clock)
    opened = open_datastore(path, boot_id="the next boot", clock=node.clock)
    opened.datastore.close()
    assert opened.report.outcome is OpenOutcome.OTHER_BOOT
    assert opened.report.former_file is not None
