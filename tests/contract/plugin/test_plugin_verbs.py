"""Every verb, every version of the specification, every kind of answer: the runtime gets the daemon's answer unchanged."""

from __future__ import annotations

import json

import grpc
import pytest

from ipamd.model.cni_versions import SUPPORTED_VERSIONS
from ipamd.pb import cni_pb2

VERBS = ("ADD", "DEL", "CHECK", "GC", "STATUS")
CODES = (1, 2, 3, 4, 5, 6, 7, 11, 50, 100, 119, 999)


def config_of(version: str) -> bytes:
    """A plausible network configuration."""
    return json.dumps({"cniVersion": version, "name": "vpc", "type": "vpc-cni", "mtu": 9001}).encode()


@pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
@pytest.mark.parametrize("verb", VERBS)
def test_the_result_is_printed_as_the_daemon_sent_it(plugin, daemon, verb, version):
    """Standard output carries the daemon's bytes unchanged and the exit status is 0, for every verb and spec version."""
    result = b'{ "cniVersion" : "%s",\n "ips":[] }\n' % version.encode()
    daemon.reply = lambda _: cni_pb2.ExecReply(protocol=1, result=result)
    outcome = plugin.run(verb, config_of(version))
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, result, b"")
    assert [request.verb for request in daemon.requests] == [verb]
    assert daemon.requests[0].config == config_of(version)


@pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
@pytest.mark.parametrize("verb", VERBS)
def test_every_error_code_reaches_the_runtime_in_the_specified_form(any_plugin, daemon, verb, version):
    """An error of the daemon becomes the CNI error structure with the request's version and exit status 1 (I14)."""
    for code in CODES:
        message, details = f'"quoted" \\ {code}\n', "t\u00e4b\t\u2028 \U0001f980"
        error = cni_pb2.CniError(code=code, message=message, details=details, cni_version=version)
        daemon.reply = lambda _, error=error: cni_pb2.ExecReply(protocol=1, error=error, result=b"ignored")
        document = any_plugin.run(verb, config_of(version)).error(code)
        assert document == {"cniVersion": version, "code": code, "msg": message, "details": details}


def test_an_error_without_version_gets_that_of_the_request(any_plugin, daemon):
    """The error document always has a cniVersion, also if the daemon could not read the configuration."""
    daemon.reply = lambda _: cni_pb2.ExecReply(error=cni_pb2.CniError(code=6))
    assert any_plugin.run("ADD", config_of("0.4.0")).error(6)["cniVersion"] == "0.4.0"
    assert any_plugin.run("ADD", b"not JSON").error(6)["cniVersion"] == SUPPORTED_VERSIONS[-1]


def test_the_request_carries_what_the_runtime_gave(plugin, daemon):
    """The envelope has identity, environment and configuration unparsed, the protocol range and the remaining deadline."""
    config = b'{"cniVersion":"1.1.0","raw":"\xff\x00"}'
    assert plugin.run("ADD", config, CNI_ARGS="K8S_POD_NAME=p\u00f6d;X=1").status == 0
    (request,) = daemon.requests
    assert (request.container_id, request.ifname, request.netns) == ("5a" * 32, "eth0", "/var/run/netns/sandbox")
    assert (request.args, request.path, request.config) == ("K8S_POD_NAME=p\u00f6d;X=1", "/opt/cni/bin", config)
    assert (request.protocol_min, request.protocol_max) == (1, 1)
    assert request.plugin_version
    assert 50 < daemon.remaining_s[0] <= 60


@pytest.mark.parametrize(("verb", "bound_s"), [("ADD", 60), ("DEL", 30), ("CHECK", 10), ("GC", 60), ("STATUS", 5)])
def test_each_verb_has_its_own_deadline(any_plugin, daemon, verb, bound_s):
    """The daemon sees a deadline that ends before the verb's, so that the plugin's own words still fit."""
    assert any_plugin.run(verb).status == 0
    assert bound_s * 0.8 < daemon.remaining_s[0] < bound_s


@pytest.mark.parametrize("verb", ["GC", "STATUS"])
def test_gc_and_status_need_no_sandbox(any_plugin, daemon, verb):
    """Verbs about the node work without CNI_CONTAINERID, CNI_IFNAME and CNI_NETNS, and send none."""
    assert any_plugin.run(verb, CNI_CONTAINERID=None, CNI_IFNAME=None, CNI_NETNS=None).status == 0
    assert any_plugin.run(verb).status == 0
    assert {(request.container_id, request.ifname, request.netns) for request in daemon.requests} == {("", "", "")}


@pytest.mark.parametrize("netns", [None, "", "/gone"])
def test_del_needs_no_netns_and_no_config(any_plugin, daemon, netns):
    """I3: a DEL whose namespace is gone, or whose configuration is lost, still reaches the daemon."""
    assert any_plugin.run("DEL", b"", CNI_NETNS=netns).status == 0
    assert daemon.requests[0].netns == (netns or "")


@pytest.mark.parametrize("version", [*SUPPORTED_VERSIONS, "0.2.0", "1.2.0"])
def test_version_is_answered_without_the_daemon(plugin, version):
    """VERSION echoes the request's version and lists ours, with nobody on the socket."""
    outcome = plugin.run("VERSION", config_of(version), CNI_CONTAINERID=None, CNI_IFNAME=None, CNI_NETNS=None)
    assert outcome.status == 0
    assert outcome.document() == {"cniVersion": version, "supportedVersions": list(SUPPORTED_VERSIONS)}


@pytest.mark.parametrize("config", [b"", b"{}", b"garbage", b'{"cniVersion":7}', b'{"cniVersion":"\\u0031"}'])
def test_version_without_a_readable_version_still_answers(any_plugin, config):
    """VERSION never fails for what stands on standard input."""
    assert any_plugin.run("VERSION", config).document()["cniVersion"] == SUPPORTED_VERSIONS[-1]


@pytest.mark.parametrize("protocol", [0, 2, 4294967295])
def test_a_protocol_that_was_not_offered_is_refused(any_plugin, daemon, protocol):
    """A result in an envelope version outside our range is not printed."""
    daemon.reply = lambda _: cni_pb2.ExecReply(protocol=protocol, result=b"{}")
    assert str(protocol) in any_plugin.run("ADD").error(194)["details"]


STATUS_TABLE = {code: 193 for code in grpc.StatusCode if code is not grpc.StatusCode.OK} | {
    grpc.StatusCode.CANCELLED: 11,
    grpc.StatusCode.UNAVAILABLE: 11,
    grpc.StatusCode.DEADLINE_EXCEEDED: 11,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 11,
}


@pytest.mark.parametrize("status", STATUS_TABLE, ids=lambda status: status.name)
def test_every_grpc_status_has_a_cni_code(any_plugin, daemon, spooled, status):
    """The table gRPC status -> CNI code is complete; what is retryable is 11, for STATUS 50, and a DEL is kept (I3)."""
    daemon.abort = (status, "because \u00e4 % \x01")
    code = STATUS_TABLE[status]
    for verb in ("CHECK", "GC", *(["ADD"] if code != 11 else [])):  # an ADD waits for another daemon (test_plugin_rolls.py)
        details = any_plugin.run(verb).error(code)["details"]
        assert status.name in details
        assert "because \u00e4 % \x01" in details
    any_plugin.run("STATUS").error(50 if code == 11 else 193)
    if code == 11:
        assert any_plugin.run("DEL").status == 0
        assert [request.verb for request in spooled()] == ["DEL"]
    else:
        any_plugin.run("DEL").error(193)
        assert spooled() == []
