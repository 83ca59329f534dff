"""A node of fakes and the values that it exposes, for the tests beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fakes.node import FakeNode


def value(node: FakeNode, name: str, **labels: str) -> float | None:
    """One sample of a scrape."""
    return node.app.metrics.registry.get_sample_value(name, labels)


def samples(node: FakeNode, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """Every sample of a gauge in a scrape: its labels, sorted by name -> value."""
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in node.app.metrics.registry.collect()
        for sample in family.samples
        if sample.name == name
    }


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
