"""A node of fakes and the values that it exposes, for the tests beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fakes.node import FakeNode


def value(node: FakeNode, name: str, **labels: str) -> float | None:
    """One sample of a scrape."""
    return node.app.metrics.registry.get_sample_value(name, labels)


@contextmanager
def closing_nodes() -> Iterator[list[FakeNode]]:
    """A list for nodes, which are closed at the end."""
    nodes: list[FakeNode] = []
    yield nodes
    for one in nodes:
        one.datastore.close()


def start(made: list[FakeNode], path: Path, **options: object) -> FakeNode:
    """Bring a node up."""
    node = FakeNode(path, **options)  # type: ignore[arg-type]
    made.append(node)
    node.bring_up()
    return node
