"""The daemon's own limit of descriptors, raised at start in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RAISE = """
import logging, resource, sys
from ipamd.daemon import _raise_descriptor_limit
logging.basicConfig(format="%(message)s", stream=sys.stdout)
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
_raise_descriptor_limit(256)
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        pytest.param(256, 4096, "4096 4096", id="to the hard limit"),
        pytest.param(2048, 2048, "2048 2048", id="nothing to raise"),
        pytest.param(256, 300, "limit=300 needed=456 rpcs=256\n300 300", id="scarce"),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_it_may_be(soft: int, hard: int, expected: str) -> None:
    """A soft limit of 1,024 is an old default, not a decision; a hard limit that is too low is said."""
    source = RAISE.format(soft=soft, hard=hard)
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, cwd=root, timeout=120, check=True)
    assert done.stdout.strip().endswith(expected)
    assert ("rpcs=" in done.stdout) == ("rpcs=" in expected)
