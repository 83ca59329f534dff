"""The inventory's client has a model of its own, and leaves the daemon's client, data and imports as they are."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import botocore
import pytest
from botocore import awsrequest
from botocore.loaders import Loader

from ipamd.cloud import trim_model
from ipamd.cloud.bounded_http import AWS_BYTES_MAX, BoundedResponse
from ipamd.cloud.inventory_client import INVENTORY_OPERATIONS, PAGE_BYTES_MAX, InventoryClient
from ipamd.cloud.operations import OPERATIONS
from ipamd.cloud.trimmed_model import MANIFEST, trimmed_loader
from ipamd.settings import CloudConfig
from tests import aws_environment
from tests.unit.cloud.test_trim_model import outline, service


@pytest.fixture(scope="module")
def inventory_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Freshly trimmed data of the inventory."""
    directory = tmp_path_factory.mktemp("data") / "inventory"
    trim_model.write(directory, trim_model.KEPT_FOR_INVENTORY)
    return directory


@pytest.mark.parametrize("operation", INVENTORY_OPERATIONS)
def test_trimmed_operations_equal_the_whole_ones(inventory_data: Path, operation: str) -> None:
    """Input and output are those of the whole model."""
    ours = service(trimmed_loader(inventory_data), "ec2").operation_model(operation)
    theirs = service(Loader(), "ec2").operation_model(operation)
    assert outline(ours.input_shape) == outline(theirs.input_shape)
    assert outline(ours.output_shape) == outline(theirs.output_shape)


def test_operations_are_named_as_botocore_names_them() -> None:
    """And none of them changes anything."""
    assert {api: botocore.xform_name(api) for api in INVENTORY_OPERATIONS} == dict(INVENTORY_OPERATIONS)
    assert all(api.startswith(("Describe", "Get")) for api in INVENTORY_OPERATIONS)


def test_the_daemons_data_have_the_daemons_operations(tmp_path: Path) -> None:
    """The inventory's list of operations does not add to them."""
    trim_model.write(tmp_path / "data")
    assert json.loads((tmp_path / "data" / MANIFEST).read_text())["operations"] == sorted(OPERATIONS)


def test_one_client_has_a_bound_of_its_own(
    inventory_data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On its own connection pools; botocore's classes keep the daemon's, and the trimmed model is used without a warning."""
    aws_environment.clean(monkeypatch)
    with caplog.at_level(logging.WARNING, logger="ipamd"):
        client = InventoryClient(CloudConfig(), region=lambda: "us-west-2", model_dir=inventory_data).built()
    assert caplog.records == []
    assert set(client.meta.service_model.operation_names) == set(INVENTORY_OPERATIONS)
    pools = client._endpoint.http_session._pool_classes_by_scheme
    assert {pool.ConnectionCls.response_class.BYTES_MAX for pool in pools.values()} == {PAGE_BYTES_MAX}
    assert set(pools) == {"http", "https"}
    assert client._endpoint.http_session._manager.pool_classes_by_scheme is pools
    for connection in (awsrequest.AWSHTTPConnection, awsrequest.AWSHTTPSConnection):
        assert connection.response_class is BoundedResponse
    assert BoundedResponse.BYTES_MAX == AWS_BYTES_MAX
    for pool in (awsrequest.AWSHTTPConnectionPool, awsrequest.AWSHTTPSConnectionPool):
        assert pool.ConnectionCls in (awsrequest.AWSHTTPConnection, awsrequest.AWSHTTPSConnection)


def test_the_daemon_imports_nothing_of_it() -> None:
    """Neither at its start nor for its first call to EC2."""
    modules = "ipamd.daemon, ipamd.process.bootstrap, ipamd.process.lifecycle, ipamd.cloud.ec2, ipamd.cloud.child"
    program = f"import sys, {modules}; print([name for name in sys.modules if 'inventory' in name and name.startswith('ipamd')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
