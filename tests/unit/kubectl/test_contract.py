"""The plugin reads what the daemon of this checkout exposes, over the daemon's own HTTP port."""

from __future__ import annotations

import urllib.request
from contextlib import closing
from pathlib import Path

from ipamd.metrics.page import serve
from kubectl_ipamd.figures import read_figures
from tests.fakes.cloud import IDENTITY
from tests.stories.stale_reads import run_sandboxes
from tests.unit.service.metric_values import closing_nodes, start, value


def test_a_daemons_page_is_read(tmp_path: Path) -> None:
    """Release, zone, addresses and subnet of a whole daemon of fakes that serves one sandbox."""
    with closing_nodes() as nodes:
        node = start(nodes, tmp_path)
        run_sandboxes(node, "a")
        port = serve(node.app.metrics, "127.0.0.1:0")
        assert port is not None
        with closing(port), urllib.request.urlopen(f"http://127.0.0.1:{port.port}/metrics", timeout=10) as answer:
            figures = read_figures(answer.read().decode())
        counts = node.datastore.counts()
        assert (figures.assigned, figures.zone) == (1, IDENTITY.availability_zone)
        assert figures.assignable == counts.free
        assert sum(subnet.held["assigned"] for subnet in figures.subnets.values()) == 1
        assert value(node, "ipamd_build_info", version=figures.version) == 1
        assert figures.is_ready == (value(node, "ipamd_ready") == 1)
