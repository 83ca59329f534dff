"""Check whether the daemon of amazon-vpc-cni-k8s listens. On its Unix socket any listener counts. On TCP it must identify itself.

Many examples of gRPC use 127.0.0.1:50051. So a listener on that port is asked, by gRPC's health protocol, for a service name that only
the daemon of amazon-vpc-cni-k8s has. Source: amazon-vpc-cni-k8s pkg/ipamd/rpc_handler.go, RunRPCHandler;
<https://github.com/grpc/grpc/blob/master/doc/health-checking.md>.
"""

from __future__ import annotations

import os
import socket
import struct

import grpc

from ipamd.grpc_client import NO_REPETITION

HEALTH_METHOD = "/grpc.health.v1.Health/Check"

HEALTH_SERVICE = b"grpc.health.v1.aws-node"

CONNECT_S = 1.0
"""Timeout of a connection, and of the health check, in seconds. Ours: both listeners are on this node, so a connection takes
microseconds or is refused."""


def is_served_by_another(path: str) -> bool:
    """Whether a process other than this one listens on a Unix socket. A process that is too busy to accept a connection counts.

    The kernel reports the PID of the listening process, which is 0 for a process in another PID namespace. An earlier process of our
    daemon cannot be the listener, because it has ended: this process holds the lock. Source: unix(7), SO_PEERCRED.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
        sock.settimeout(CONNECT_S)
        try:
            sock.connect(path)
        except (TimeoutError, BlockingIOError):
            return True
        except (OSError, ValueError):
            return False
        pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(pid) != os.getpid()


def is_aws_node(address: tuple[str, int], *, timeout_s: float = CONNECT_S) -> bool:
    """Whether the daemon of amazon-vpc-cni-k8s listens on a TCP address.

    A listener that does not answer in time counts as that daemon (I11).
    """
    try:
        socket.create_connection(address, timeout_s).close()
    except TimeoutError:
        return True
    except OSError:
        return False
    request = bytes((10, len(HEALTH_SERVICE))) + HEALTH_SERVICE  # HealthCheckRequest.service = 1
    options = [("grpc.enable_http_proxy", 0), NO_REPETITION]
    with grpc.insecure_channel(f"{address[0]}:{address[1]}", options=options) as channel:
        try:
            channel.unary_unary(HEALTH_METHOD, request_serializer=bytes, response_deserializer=bytes)(request, timeout=timeout_s)
        except grpc.RpcError as error:
            status: grpc.Call = error  # type: ignore[assignment]  # at run time every RpcError of a call carries code and details
            return status.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    return True
