"""Waiting until EC2 says that an ENI is attached, against the lab's EC2."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ipamd.model.errors import CloudError
from ipamd.model.failures import FailureCode
from tests.errors import failed
from tests.lab.cloud_adapter.conftest import Bench


def test_a_slow_attachment_is_waited_for(make_bench: Callable[..., Bench]) -> None:
    """An ENI is described once EC2 says that it is attached, however many looks that takes (I7)."""
    bench = make_bench(attach_delay_s=5.0)
    eni_id = bench.attached()
    assert bench.ec2.describe_eni(eni_id).attachment_status == "attaching"
    assert bench.ec2.describe_attached_eni(eni_id).attachment_status == "attached"


def test_an_attachment_that_never_comes_is_given_up(make_bench: Callable[..., Bench]) -> None:
    """A minute of looking is the bound, and the error names what EC2 said last."""
    bench = make_bench(attach_delay_s=100_000.0)
    eni_id = bench.attached()
    began = bench.clock.monotonic()
    with pytest.raises(CloudError, check=failed(FailureCode.EC2_NOT_ATTACHED, status="attaching")):
        bench.ec2.describe_attached_eni(eni_id)
    assert bench.clock.monotonic() - began <= 70
