"""Read metrics by name from a page in the text format of Prometheus. Only the parts of the format that the daemon uses are read.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/, "Text-based format".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

Labels = Mapping[str, str]

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

_ESCAPE = re.compile(r"\\(.)")

_ESCAPED = {"n": "\n"}


@dataclass(frozen=True)
class Samples:
    """The samples of one page of metrics, by the name of their metric."""

    by_name: Mapping[str, list[tuple[Labels, float]]] = field(default_factory=dict)

    def value(self, name: str) -> float | None:
        """Return the value of a metric's first sample; None if there is no sample."""
        for _, value in self.of(name):
            return value
        return None

    def of(self, name: str) -> list[tuple[Labels, float]]:
        """Return all samples of a metric, with their labels."""
        return self.by_name.get(name, [])

    def label(self, name: str, label: str) -> str:
        """Return the value of a label of a metric's first sample; "" if there is no sample or no such label."""
        for labels, _ in self.of(name):
            return labels.get(label, "")
        return ""

    def labels_of(self, name: str, label: str) -> Iterator[str]:
        """Yield the value of a label for each sample of a metric, leaving out samples with value 0."""
        for labels, value in self.of(name):
            if value:
                yield labels.get(label, "")


def parse(text: str, names: Collection[str]) -> Samples:
    """Read the samples of the metrics `names`. A line that is not in the format is left out, because later releases may extend it."""
    by_name: dict[str, list[tuple[Labels, float]]] = {}
    for line in text.splitlines():
        name = _name_of(line)
        if name not in names:
            continue
        rest = line[len(name) :]
        label_text, has_labels, value_text = rest.rpartition("}")
        if not has_labels:
            value_text = rest
        try:
            value = float(value_text.split()[0])
        except (IndexError, ValueError):
            continue
        labels = {match[1]: _ESCAPE.sub(_unescaped, match[2]) for match in _LABEL.finditer(label_text)}
        by_name.setdefault(name, []).append((labels, value))
    return Samples(by_name)


def _name_of(line: str) -> str:
    return line.partition("{")[0].partition(" ")[0]


def _unescaped(match: re.Match[str]) -> str:
    return _ESCAPED.get(match[1], match[1])
