"""The EC2 endpoint: one call from the wire to the state and back, with the faults in between.

Order of steps in a call: hang, latency, throttling, injected error, permission, DryRun, effect, answer latency, log, lost
answer.
Signatures are not checked: any credentials do. A call is logged before its answer leaves, so that a test that has the
answer finds the call.
"""

from __future__ import annotations

import logging
import socket
import uuid
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus

from lab.ec2 import change, describe, gates, groups, key_pairs, networks, xml
from lab.ec2.describe import View
from lab.ec2.query import Params
from lab.ec2.xml import Tree
from lab.httpd import HttpServer, Listener, Request, Response
from lab.vpc.calls import OK, Call
from lab.vpc.errors import Ec2Error
from lab.vpc.state import Vpc

_log = logging.getLogger(__name__)

_DESCRIBES: Mapping[str, Callable[[View, Params], Tree]] = {
    "DescribeNetworkInterfaces": describe.network_interfaces,
    "DescribeInstances": describe.instances,
    "DescribeInstanceTypes": describe.instance_types,
    "DescribeSubnets": describe.subnets,
    "DescribeVpcs": describe.vpcs,
    "DescribeAvailabilityZones": describe.availability_zones,
    "DescribeTags": describe.tags,
    "GetSubnetCidrReservations": describe.subnet_cidr_reservations,
}
_CHANGES: Mapping[str, Callable[[Vpc, Params], Tree]] = {
    "CreateNetworkInterface": change.create_network_interface,
    "AttachNetworkInterface": change.attach_network_interface,
    "DetachNetworkInterface": change.detach_network_interface,
    "DeleteNetworkInterface": change.delete_network_interface,
    "ModifyNetworkInterfaceAttribute": change.modify_network_interface_attribute,
    "AssignPrivateIpAddresses": change.assign_private_ip_addresses,
    "UnassignPrivateIpAddresses": change.unassign_private_ip_addresses,
    "AssignIpv6Addresses": change.assign_ipv6_addresses,
    "UnassignIpv6Addresses": change.unassign_ipv6_addresses,
    "CreateTags": change.create_tags,
    "DeleteTags": change.delete_tags,
    "CreateSubnet": networks.create_subnet,
    "DeleteSubnet": networks.delete_subnet,
    "AssociateRouteTable": networks.associate_route_table,
    "DisassociateRouteTable": networks.disassociate_route_table,
    **groups.CALLS,
    **key_pairs.CALLS,
}
OPERATIONS = frozenset([*_DESCRIBES, *_CHANGES])


class Ec2Server:
    """EC2 for one VPC on any number of sockets, each optionally tagged with the instance that calls by it."""

    def __init__(self, vpc: Vpc, *, sockets: Iterable[Listener | socket.socket | tuple[str, int]] = ()) -> None:
        self._vpc = vpc
        self._http = HttpServer(self._handle, sockets)
        self.add_listener = self._http.add_listener
        self.remove_listener = self._http.remove_listener

    def __enter__(self) -> Ec2Server:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """(host, port) of each listener."""
        return self._http.addresses

    @property
    def url(self) -> str:
        """Endpoint URL of the first listener."""
        return self._http.url

    def start(self) -> None:
        """Begin to serve."""
        self._vpc.faults.on_change(self._faults_changed)
        self._faults_changed()
        self._http.start()

    def stop(self) -> None:
        """Stop serving; closes the sockets and ends every thread."""
        self._vpc.faults.off_change(self._faults_changed)
        self._http.stop()

    def _faults_changed(self) -> None:
        self._http.set_reach(self._vpc.faults.reach("ec2"))

    def _handle(self, request: Request) -> Response | None:
        at = self._vpc.clock()
        params = Params.decode(request.body or request.query.encode())
        api = params.text("Action") or ""
        faults = self._vpc.faults
        if faults.hangs(api):
            self._record(at, request, api, params, "Hang", answered=False)
            self._http.hold(lambda: faults.hangs(api))
            return None
        verdict = faults.decide(api, is_bare=gates.is_bare(params))
        self._http.sleep(verdict.latency_s)
        request_id = str(uuid.uuid4())
        try:
            if verdict.error is not None:
                raise verdict.error
            tree = self._perform(api, params, session=request.instance or "operator")
        except Ec2Error as exc:
            outcome, response = exc.code, Response(exc.status, xml.error(exc, request_id), "text/xml;charset=UTF-8")
        else:
            outcome = OK
            response = Response(HTTPStatus.OK, xml.answer(api, request_id, tree), "text/xml;charset=UTF-8")
        self._http.sleep(verdict.answer_latency_s)
        self._record(at, request, api, params, outcome, answered=not verdict.loses_answer)
        return None if verdict.loses_answer else response

    def _perform(self, api: str, params: Params, *, session: str) -> Tree:
        if api not in OPERATIONS:
            raise Ec2Error("InvalidAction", f"The action {api} is not valid for this web service.")
        if params.flag("DryRun"):
            gates.check_permission(self._vpc, api, params, session=session)
            raise Ec2Error(
                "DryRunOperation",
                "Request would have succeeded, but DryRun flag is set.",
                status=HTTPStatus.PRECONDITION_FAILED,
            )
        try:
            gates.check_permission(self._vpc, api, params, session=session)
            gates.check_seen(self._vpc, api, params)
            if api in _DESCRIBES:
                return _DESCRIBES[api](View(self._vpc, self._vpc.shown_by(api)), params)
            return _CHANGES[api](self._vpc, params)
        except Ec2Error as exc:
            raise self._vpc.faults.rules.reword(exc) from exc
        except Exception as exc:  # top of an RPC: a bug in the lab is an internal error, said loudly
            _log.exception("the lab failed in %s", api)
            raise Ec2Error("InternalError", f"the lab failed: {exc!r}", status=500) from exc

    def _record(self, at: float, request: Request, api: str, params: Params, outcome: str, *, answered: bool) -> None:
        fields = {key: value for key, value in params.fields.items() if key not in ("Action", "Version")}
        self._vpc.record_call(Call(at, request.instance, api, fields, outcome, answered))
