"""Which mounted files a daemon follows from its start on."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipamd.process.lifecycle import Lifecycle
from ipamd.process.network_watch import NetworkFileWatch
from ipamd.settings import SubnetsConfig
from tests.fakes.node import FakeNode


@pytest.mark.parametrize(
    ("config", "is_followed"),
    [
        (SubnetsConfig(), False),
        (SubnetsConfig(custom_networking=True), True),
        (SubnetsConfig(pod_pools=("pay=cards",)), True),
        (SubnetsConfig(pinned_list=True), True),
    ],
)
def test_the_network_file_is_followed_if_anything_needs_it(tmp_path: Path, config: SubnetsConfig, is_followed: bool) -> None:
    """A change of it is reported, whichever of its parts is in use."""
    node = FakeNode(tmp_path, subnets=config)
    life = Lifecycle(node.app, end=print)
    life._follow_settings()
    try:
        assert any(isinstance(file, NetworkFileWatch) for file in life._files._followed) is is_followed
    finally:
        life.stop()
