"""One ground per pool mode and file, one start of node-a's daemon per setting: pytest orders the tests so that each happens once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.packets.ground import MODES, SETTINGS, Ground, ground


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In IPv6 no SNAT setting changes anything, so there is one; of prefix mode, which changes no rule, the others are heavy."""
    for item in list(items):
        of = getattr(item, "callspec", None)
        if of is None or of.params.get("everywhere", "default") == "default":
            continue
        if of.params["made"] == "ipv6":
            items.remove(item)
        elif of.params["made"] == "prefix":
            item.add_marker(pytest.mark.heavy)


@pytest.fixture(scope="module", params=list(MODES))
def made(request: pytest.FixtureRequest) -> Iterator[Ground]:
    """The ground, in each pool mode."""
    with ground(request.param) as found:
        yield found


@pytest.fixture(scope="module", params=list(SETTINGS))
def everywhere(request: pytest.FixtureRequest, made: Ground) -> Ground:
    """The ground under each SNAT setting, the sandboxes being older than the setting."""
    made.apply(SETTINGS[request.param])
    return made
