"""One ground per pool mode and file, one start of node-a's daemon per setting: pytest orders the tests so that each happens once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab.vpc.family import IPV6
from tests.lab.packets.ground import MODES, SETTINGS, Ground, ground


@pytest.fixture(scope="module", params=list(MODES))
def made(request: pytest.FixtureRequest) -> Iterator[Ground]:
    """The ground, in each pool mode."""
    with ground(request.param) as found:
        yield found


@pytest.fixture(scope="module", params=list(SETTINGS))
def everywhere(request: pytest.FixtureRequest, made: Ground) -> Ground:
    """The ground under each SNAT setting, the sandboxes being older than the setting."""
    if made.family is IPV6 and request.param != "default":
        pytest.skip("in IPv6 no setting changes anything")
    made.apply(SETTINGS[request.param])
    return made
