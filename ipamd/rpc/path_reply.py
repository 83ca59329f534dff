"""Make the reply of the introspection service about the path of a packet."""

from __future__ import annotations

from ipamd.answers import UNKNOWN, answer
from ipamd.model.family import IpAddress
from ipamd.pb import introspection_pb2 as pb
from ipamd.report.path_report import PathLookup, PathReport


def path_reply(report: PathReport) -> pb.PathReply:
    """Make the reply. Verdict, cause and next action in it are those of the first finding."""
    return answer(
        pb.PathReply,
        report,
        report.findings[0],
        source=_text(report.source),
        seen_as=_text(report.seen_as),
        lookups=[_lookup(lookup) for lookup in report.lookups],
    )


def _lookup(lookup: PathLookup) -> pb.PathLookup:
    route = lookup.answer
    rule = UNKNOWN
    if route.rule is not None:
        rule = route.rule
    return answer(
        pb.PathLookup,
        lookup,
        lookup.packet,
        route,
        source=_text(lookup.packet.source),
        rule=rule,
        via=_text(route.via),
    )


def _text(address: IpAddress | None) -> str:
    if address is None:
        return ""
    return str(address)
