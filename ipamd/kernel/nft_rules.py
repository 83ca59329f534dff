"""Read chains and rules out of nftables' JSON, as far as `filters` needs them. Pure.

iptables-nft's rules are among them; what it keeps as an extension ("xt") is named there without its arguments. Source of the
shapes: libnftables-json(5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ipamd.kernel.filters import Interface, Rule, Scope, Verdict

JsonObject = Mapping[str, Any]

_VERDICTS: Final = {
    "accept": Verdict.ACCEPT,
    "drop": Verdict.DROP,
    "reject": Verdict.DROP,
    "return": Verdict.RETURN,
    "jump": Verdict.JUMP,
    "goto": Verdict.GOTO,
}
_HARMLESS: Final = frozenset({"counter", "log", "comment", "mangle"})
"""Statements that neither choose packets nor end a rule."""


@dataclass(frozen=True, slots=True)
class Chain:
    """One chain; `hook` is empty for a chain that is not a base chain."""

    family: str
    table: str
    name: str
    hook: str = ""
    policy_drops: bool = False


def read_chains(answer: Iterable[JsonObject]) -> list[Chain]:
    """The chains of an answer to `list chains`; objects of another shape are left out."""
    found = []
    for item in answer:
        chain = item.get("chain")
        if isinstance(chain, dict):
            words = [word for name in ("family", "table", "name") if isinstance(word := chain.get(name), str)]
            if len(words) == 3:
                hook = str(chain.get("hook") or "")
                found.append(Chain(words[0], words[1], words[2], hook, chain.get("policy") == "drop"))
    return found


def read_rules(answer: Iterable[JsonObject]) -> list[Rule]:
    """The rules of an answer to `list chain`, in order."""
    rules = [item["rule"] for item in answer if isinstance(item.get("rule"), dict)]
    return [_rule(rule["expr"]) for rule in rules if isinstance(rule.get("expr"), list)]


def _rule(expressions: Iterable[object]) -> Rule:
    rule = Rule(Verdict.NONE)
    for expression in expressions:
        if not isinstance(expression, dict) or len(expression) != 1:
            return replace(rule, scope=Scope.PART)
        ((kind, body),) = expression.items()
        if kind == "match":
            rule = _with_match(rule, body)
        elif kind == "xt":
            rule = _with_extension(rule, body)
        elif kind in _VERDICTS:
            rule = replace(rule, verdict=_VERDICTS[kind], target=body.get("target", "") if isinstance(body, dict) else "")
        elif kind not in _HARMLESS:
            rule = replace(rule, scope=Scope.PART)
    return rule


def _with_match(rule: Rule, body: JsonObject) -> Rule:
    left, right, operator = body.get("left"), body.get("right"), body.get("op")
    key = left.get("meta", {}).get("key") if isinstance(left, dict) and isinstance(left.get("meta"), dict) else None
    if key in ("iifname", "oifname") and isinstance(right, str) and operator in ("==", "!="):
        condition = Interface(right, is_negated=operator == "!=")
        if key == "iifname":
            return replace(rule, incoming=(*rule.incoming, condition))
        return replace(rule, outgoing=(*rule.outgoing, condition))
    payload = left.get("payload") if isinstance(left, dict) else None
    if isinstance(payload, dict) and payload.get("field") in ("saddr", "daddr"):
        return _narrowed(rule, Scope.BY_ADDRESS)
    return _narrowed(rule, Scope.PART)


def _with_extension(rule: Rule, body: object) -> Rule:
    """An iptables extension: of its arguments nothing is known, so a match but for a comment takes a part of the traffic."""
    name, kind = (body.get("name"), body.get("type")) if isinstance(body, dict) else (None, None)
    if kind == "match":
        return rule if name == "comment" else _narrowed(rule, Scope.PART)
    if name == "REJECT":
        return replace(rule, verdict=Verdict.DROP)
    return rule


def _narrowed(rule: Rule, scope: Scope) -> Rule:
    return rule if rule.scope is Scope.PART else replace(rule, scope=scope)
