"""Requests and replies beyond one frame and beyond one flow-control window, against a real grpcio server."""

from __future__ import annotations

import pytest

from ipamd.pb import cni_pb2

SIZES = (0, 1, 16379, 16384, 16385, 65530, 65535, 65536, 100_000, 900_000)


def config_of_size(size: int) -> bytes:
    """A JSON object of so many bytes (two at least)."""
    return (b'{"pad":"' + b"x" * size)[: size - 2] + b'"}' if size > 20 else b"{}"


@pytest.mark.parametrize("size", SIZES)
def test_requests_of_any_size_arrive_whole(plugin, daemon, size):
    """Above 16 KB the request takes several frames, above 64 KB it waits for WINDOW_UPDATE; the daemon sees every byte."""
    config = config_of_size(size)
    assert plugin.run("ADD", config).status == 0
    assert daemon.requests[0].config == config


@pytest.mark.parametrize("size", [*SIZES, 4_000_000])
def test_replies_of_any_size_are_printed_whole(plugin, daemon, size):
    """The reply may have up to 4 MiB; the windows that we announce cover it."""
    result = bytes(range(256)) * (size // 256 + 1)
    daemon.reply = lambda _: cni_pb2.ExecReply(protocol=1, result=result)
    outcome = plugin.run("ADD")
    assert outcome.status == 0
    assert outcome.stdout == result


def test_large_both_ways(any_plugin, daemon):
    """A large request and a large reply in one call do not wait for each other."""
    daemon.reply = lambda request: cni_pb2.ExecReply(protocol=1, result=request.config * 4)
    config = config_of_size(1_000_000)
    assert any_plugin.run("ADD", config).stdout == config * 4


def test_a_reply_over_the_cap_is_refused(any_plugin, daemon):
    """More than 4 MiB is an error, not a memory problem."""
    daemon.reply = lambda _: cni_pb2.ExecReply(protocol=1, result=bytes((4 << 20) + 1))
    any_plugin.run("ADD").error(192)


@pytest.mark.parametrize("size", [100_000, 900_000])
def test_large_error_texts_are_kept(any_plugin, daemon, size):
    """Errors travel in the reply and have its cap, not that of gRPC metadata."""
    error = cni_pb2.CniError(code=11, message="m", details="d" * size)
    daemon.reply = lambda _: cni_pb2.ExecReply(protocol=1, error=error)
    assert len(any_plugin.run("ADD").error(11)["details"]) == size


def test_a_large_del_is_spooled_whole(any_plugin, spooled):
    """I3: the spooled entry is the request that would have been sent, byte for byte."""
    config = config_of_size(1_000_000)
    assert any_plugin.run("DEL", config).status == 0
    assert spooled()[0].config == config


def test_a_window_that_opens_slowly_is_obeyed(any_plugin, raw_peer):
    """The plugin never sends more DATA than the peer's windows allow, also when SETTINGS shrink them below what was sent."""
    received = bytearray()
    violations = []

    def behave(connection):
        def read_frame():
            head = connection.recv(9, 0x100)  # MSG_WAITALL
            size = int.from_bytes(head[:3], "big")
            return head[3], connection.recv(size, 0x100) if size else b""

        connection.recv(24, 0x100)
        allowed = 65535
        while len(received) < 65535:
            kind, payload = read_frame()
            received.extend(payload if kind == 0 else b"")
        # Only now: a plugin that has read these SETTINGS before its first DATA rightly sends 1000 bytes, and both would wait.
        connection.sendall(b"\x00\x00\x06\x04\x00\x00\x00\x00\x00" + b"\x00\x04" + (1000).to_bytes(4, "big"))
        stream_allowed, connection_allowed = 1000, allowed
        while len(received) < 200_000:
            stream_allowed += 70_000
            connection_allowed += 50_000
            for stream, increment in ((1, 70_000), (0, 50_000)):
                connection.sendall(b"\x00\x00\x04\x08\x00" + stream.to_bytes(4, "big") + increment.to_bytes(4, "big"))
            limit = min(stream_allowed, connection_allowed, 200_000)
            while len(received) < limit:
                kind, payload = read_frame()
                received.extend(payload if kind == 0 else b"")
            if len(received) > min(stream_allowed, connection_allowed):
                violations.append(len(received))
        connection.sendall(
            b"\x00\x00\x00\x04\x01\x00\x00\x00\x00" + b"\x00\x00\x0f\x01\x05\x00\x00\x00\x01\x00\x0bgrpc-status\x017"
        )

    with raw_peer(behave):
        any_plugin.run("ADD", config_of_size(300_000)).error(193)  # PERMISSION_DENIED, before the request is complete
    assert violations == []
    assert len(received) >= 200_000


@pytest.mark.parametrize("letter", [b"x", b'\\"', b"\\u003c"], ids=["plain", "quotes", "markup"])
def test_the_annotations_of_a_pod_pass(any_plugin, daemon, letter):
    """Kubernetes lets a pod have 256 KiB of them, which Go's JSON makes six times as large at most: its ADD and its DEL pass."""
    config = b'{"cniVersion":"1.0.0","runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"a":"' + letter * (256 << 10) + b'"}}}'
    for verb in ("ADD", "DEL"):
        assert any_plugin.run(verb, config).status == 0
    assert [request.config for request in daemon.requests] == [config, config]
