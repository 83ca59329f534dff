"""What the client of other programs' gRPC services does with a value that is no part of grpcio's API."""

from __future__ import annotations

import sys
from types import ModuleType

from ipamd.grpc_client import GRPC_WAKE_UP_S, wake_up_rarely


def test_waits_of_the_installed_grpcio_wake_up_rarely() -> None:
    """If this fails for a new release of grpcio, measure the daemon's CPU time at idle (`make bench`)."""
    assert vars(sys.modules["grpc._common"])["MAXIMUM_WAIT_TIMEOUT"] == GRPC_WAKE_UP_S


def test_a_release_of_grpcio_without_the_value_is_left_as_it_is() -> None:
    """The daemon starts with it all the same."""
    without_value = ModuleType("grpc._common")
    assert not wake_up_rarely({})
    assert not wake_up_rarely({"grpc._common": without_value})
    assert not hasattr(without_value, "MAXIMUM_WAIT_TIMEOUT")
