"""The part of the EKS API that the tests call: DescribeCluster, for one cluster.

The server answers EKS's REST requests with JSON, on a socket in the control plane's node. Signatures are not checked.
"""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from lab.httpd import HttpServer, Request, Response
from lab.vpc.model import OWNER_ID, Network
from lab.vpc.state import Vpc

ENDPOINT_VARIABLE = "AWS_ENDPOINT_URL_EKS"
"""Environment variable by which an AWS client calls this server."""

VERSION = "1.37"  # the Kubernetes version of tools/cluster/kubernetes/go.mod


class EksServer:
    """Serves the description of one cluster on `socket`, while its context is entered."""

    def __init__(self, description: Mapping[str, Any], *, socket: socket.socket | tuple[str, int] = ("127.0.0.1", 0)) -> None:
        """Make the object; it does not serve yet. `description`: the result of `describe`."""
        self._description = description
        self._http = HttpServer(self._handle, [socket])

    def __enter__(self) -> EksServer:
        self._http.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.stop()

    @property
    def url(self) -> str:
        """The value of ENDPOINT_VARIABLE."""
        return self._http.url

    def _handle(self, request: Request) -> Response:
        name = self._description["name"]
        if (request.method, request.path) == ("GET", f"/clusters/{name}"):
            return _answer(HTTPStatus.OK, {"cluster": self._description})
        message = f"only cluster {name} can be described here, not {request.method} {request.path}"
        return _answer(HTTPStatus.NOT_FOUND, {"message": message}, error="ResourceNotFoundException")


def describe(vpc: Vpc, *, name: str, endpoint: str, authority: str, services: Network) -> dict[str, Any]:
    """Describe a cluster of the VPC's running instances as DescribeCluster does.

    Args:
        endpoint: the API server's URL.
        authority: the certificate of the authority that signed the API server's certificate, as PEM.
        services: the block of services' cluster addresses; its family is the cluster's.
    """
    version = services.version
    subnets = sorted({instance.subnet_id for instance in vpc.instances() if instance.running})
    return {
        "name": name,
        "arn": f"arn:aws:eks:{vpc.region}:{OWNER_ID}:cluster/{name}",
        "status": "ACTIVE",
        "version": VERSION,
        "endpoint": endpoint,
        "certificateAuthority": {"data": base64.b64encode(authority.encode()).decode()},
        "kubernetesNetworkConfig": {"ipFamily": f"ipv{version}", f"serviceIpv{version}Cidr": str(services)},
        "resourcesVpcConfig": {
            "vpcId": vpc.vpc_id,
            "subnetIds": subnets,
            "securityGroupIds": [vpc.default_group_id],
            "clusterSecurityGroupId": vpc.default_group_id,
        },
    }


def _answer(status: HTTPStatus, document: Mapping[str, Any], *, error: str = "") -> Response:
    headers = {"x-amzn-ErrorType": error} if error else {}
    return Response(status, json.dumps(document).encode(), "application/json", headers)
