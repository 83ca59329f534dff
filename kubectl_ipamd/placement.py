"""Decide which nodes a DaemonSet selects, by its node selector and required node affinity.

Source: https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/. Taints are ignored, because the daemon tolerates all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

NAME_FIELD = "metadata.name"

Holds = Callable[[str | None, list[str]], bool]
"""A function that takes a node's value of a label (None if the node lacks the label) and the values of an expression, and returns
whether the expression holds."""


def is_for_node(pod_spec: Mapping[str, Any], *, name: str, labels: Mapping[str, str]) -> bool:
    """Whether the pods of a DaemonSet with this pod template may be on the node."""
    selector = pod_spec.get("nodeSelector") or {}
    if any(labels.get(label) != value for label, value in selector.items()):
        return False
    affinity = (pod_spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    return any(_fits(term, name, labels) for term in required.get("nodeSelectorTerms") or [])


def _fits(term: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> bool:
    expressions = term.get("matchExpressions") or []
    fields = term.get("matchFields") or []
    if not expressions and not fields:
        return False
    fits_labels = all(_holds(expression, labels.get(expression["key"])) for expression in expressions)
    return fits_labels and all(_holds(expression, {NAME_FIELD: name}.get(expression["key"])) for expression in fields)


def _is_greater(value: str | None, limits: list[str]) -> bool:
    return _compared(value, limits) > 0


def _is_less(value: str | None, limits: list[str]) -> bool:
    return _compared(value, limits) < 0


def _compared(value: str | None, limits: list[str]) -> int:
    """Compare a label's value with the limit: -1 if less, 1 if greater, else 0.

    0 also if one of them is no whole number: then neither Gt nor Lt holds.
    """
    try:
        number, limit = int(value or ""), int(limits[0])
    except (ValueError, IndexError):
        return 0
    return (number > limit) - (number < limit)


_OPERATORS: Mapping[str, Holds] = {
    "In": lambda value, values: value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _: value is not None,
    "DoesNotExist": lambda value, _: value is None,
    "Gt": _is_greater,
    "Lt": _is_less,
}


def _holds(expression: Mapping[str, Any], value: str | None) -> bool:
    """Return whether an expression holds. An unknown operator counts as if it held, so that the node is shown."""
    operator = _OPERATORS.get(expression.get("operator", ""))
    if operator is None:
        return True
    return operator(value, expression.get("values") or [])
