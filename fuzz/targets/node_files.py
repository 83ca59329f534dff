"""Files of the node that others write, and nftables' JSON: good ones, damaged ones, and such with strange values. Each is read as the
daemon reads it, from a file where it does; only errors of our tree come out, and what was read can be written and printed."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from fuzz import json_text
from fuzz.log_sink import LogSink
from fuzz.mutation import mutated, noise
from fuzz.target import Case, Target, Violation, blob
from ipamd.core.freeze import Freeze
from ipamd.datastore.spool import SpoolDirectory
from ipamd.history import encoding, reading, segments
from ipamd.host import conflist, plugin_bundle
from ipamd.host.first_conflist import first_conflist
from ipamd.host.freeze_files import OPERATOR_NAME, DrainHookFile, OperatorFreeze
from ipamd.host.plugin_chain import PluginChain
from ipamd.ipamctl.main import main as ipamctl
from ipamd.kernel import messages, nft_chains, uapi
from ipamd.kernel.host_events import host_events
from ipamd.kernel.netlink import attribute
from ipamd.kernel.nft import Nftables
from ipamd.kernel.notice_socket import NEW_GENERATION
from ipamd.migration.aws_node import FileAwsNode
from ipamd.model.aws_node import parse_checkpoint, render_checkpoint
from ipamd.model.chain_versions import parse_versions
from ipamd.model.cni_versions import SUPPORTED_VERSIONS
from ipamd.model.errors import ChainedPluginMissingError, IpamError
from ipamd.model.kernel import HostChange
from ipamd.model.words import printable
from ipamd.pb import cni_pb2
from ipamd.process.adapters import load_network
from ipamd.settings import DaemonConfig, Settings, SubnetsConfig, TakeoverConfig
from ipamd.settings.loading import load
from tests.fakes.clock import FakeClock

ZONE = {"subnet": "subnet-0a", "securityGroups": ["sg-0a"]}
ENTRY = {
    "networkName": "aws-cni", "containerID": "5a" * 32, "ifName": "eth0", "ipv4": "10.0.0.20", "allocationTimestamp": 1700000000000,
    "metadata": {"k8sPodNamespace": "default", "k8sPodName": "pod", "interfacesCount": 1},
}  # fmt: skip
RULE = [
    {"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "eni*"}},
    {"match": {"op": "==", "left": {"payload": {"protocol": "ip", "field": "daddr"}}, "right": "10.0.0.0"}},
    {"xt": {"type": "match", "name": "comment"}}, {"counter": {"packets": 1, "bytes": 2}}, {"jump": {"target": "other"}},
]  # fmt: skip
CHAIN = {
    "family": "ip",
    "table": "filter",
    "name": "FORWARD",
    "handle": 1,
    "type": "filter",
    "hook": "forward",
    "prio": 0,
    "policy": "drop",
}
RULESET = {"nftables": [
    {"metainfo": {"version": "1.0.6"}}, {"chain": CHAIN}, {"chain": {"family": "ip", "table": "filter", "name": "other"}},
    {"rule": {"family": "ip", "table": "filter", "chain": "FORWARD", "handle": 3, "expr": RULE}},
    {"rule": {"family": "ip", "table": "filter", "chain": "FORWARD", "handle": 4, "expr": [{"drop": None}]}},
]}  # fmt: skip
RECORD = {"at": "2026-01-01T00:00:00.000Z", "event": "attached", "container_id": "5a" * 32, "address": "10.0.0.20", "pod": "ns/pod",
          "count": 2, "code": 11, "since": "2026-01-01T00:00:00Z", "detail": "d"}  # fmt: skip
CHART_VALUES = """
image: {tag: v1.20.0}
env: {WARM_IP_TARGET: "5", ENABLE_PREFIX_DELEGATION: "true"}
eniConfig: {create: true, region: us-west-2, subnets: {a: {id: subnet-1, securityGroups: [sg-1]}}}
nodeAgent: {enabled: false}
"""
ENICONFIG = """apiVersion: crd.k8s.amazonaws.com/v1alpha1
kind: ENIConfig
metadata: {name: us-west-2a}
spec:
  subnet: subnet-0a
  securityGroups: [sg-0a, "sg-0b"]
---
"""
SETTINGS = """# all of it
WARM_IP_TARGET=5
MINIMUM_IP_TARGET = 10
AWS_VPC_K8S_CNI_EXCLUDE_SNAT_CIDRS=10.1.0.0/16,10.2.0.0/16
VPC_IPAMD_CHAINED_PLUGINS=[{"type":"tuning","sysctl":{"net.core.somaxconn":"512"}}]
VPC_IPAMD_METRICS_ADDRESS=127.0.0.1:61678
VPC_IPAMD_EXTRA_SOURCE_CIDRS=192.0.2.0/24
ADDITIONAL_ENI_TAGS={"a":"b"}
AWS_VPC_K8S_CNI_VETHPREFIX=eni
"""
BOOT_ID = "b0"
DEL = cni_pb2.ExecRequest(verb="DEL", container_id="5a" * 32, ifname="eth0", config=b"{}").SerializeToString()
NOTE = {"version": [1, 2], "next": [3, 4], "exporting": True, "seen": [BOOT_ID, 1.5, "it wrote its file", [1, 2]]}
CONFLIST = {"cniVersion": "1.0.0", "name": "aws-cni", "plugins": [{"type": "aws-cni"}]}
APPENDED = {"cniVersion": "1.0.0", "name": "vpc-ipamd", "plugins": [{"type": "vpc-cni"}, {"type": "mesh-cni"}]}
MULTUS = {"cniVersion": "0.3.1", "name": "multus", "type": "multus", "capabilities": {"mac": True}, "delegates": [APPENDED]}

SEEDS: Mapping[str, tuple[object, ...]] = {
    "settings": (SETTINGS,),
    "network": ({"zones": {"us-west-2a": ZONE, "default": ZONE}, "primaryEniCarriesPods": False},),
    "checkpoint": ({"version": "vpc-cni-ipam/1", "allocations": [ENTRY, ENTRY | {"containerID": "b", "ipv4": "10.0.0.21"}]},),
    "note": (NOTE,),
    "other_conflist": (CONFLIST,),
    "conflist": (CONFLIST, APPENDED),
    "first_conflist": (MULTUS, MULTUS | {"clusterNetwork": "vpc-ipamd"}, APPENDED),
    "plugin_chain": (CONFLIST, APPENDED),
    "history": (json.dumps(RECORD) + "\n" + json.dumps(RECORD | {"event": "refused"}) + "\n",),
    "operator_freeze": ({"boot_id": BOOT_ID, "reason": "r", "since_at": "2026-01-01T00:00:00+00:00"},),
    "drain_hook": ("a drain hook's reason\n",),
    "spool": (DEL,),
    "plugin_list": (f"{'5a' * 32}  portmap\n{'5b' * 32}  bandwidth\n",),
    "plugin_versions": ({"cniVersion": "1.1.0", "supportedVersions": ["0.3.1", "0.4.0", "1.0.0"]},),
    "eniconfig": (ENICONFIG * 2, '{"kind": "List", "items": []}'),
    "chart_values": (CHART_VALUES,),
    "nftables": (RULESET,),
    "link": (b"eni0123\0vpc-ipamd/1 " + b"5a" * 32 + b" eth0 10.0.0.20\0veth", b"eth1\0\0"),
    "nft_process": (b"kube-proxy", b"nft\x1b[1m"),
}
"""By kind of file: good contents, as documents or as texts."""


class NodeFiles(Target):
    """A case: `kind` (one of SEEDS), and `content`."""

    cpu_s = 5.0

    def __init__(self) -> None:
        self._log = LogSink()
        self._root = Path(tempfile.mkdtemp(prefix="fuzz-"))
        self._clock = FakeClock()
        self._readers: Mapping[str, Callable[[Path, bytes], None]] = {name: getattr(self, f"_{name}") for name in SEEDS}

    def generate(self, random: Random) -> Case:
        kind = random.choice(list(SEEDS))
        return {"kind": kind, "content": _content(random, random.choice(SEEDS[kind]))}

    def run(self, case: Case) -> None:
        content, path = blob(case["content"]), self._root / "file"
        path.write_bytes(content)
        with contextlib.suppress(IpamError):
            self._readers[case["kind"]](path, content)
        self._log.judge()

    def close(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def _settings(self, path: Path, _: bytes) -> None:
        try:
            load({"CLUSTER_NAME": "fuzz", "VPC_IPAMD_SETTINGS_FILE": str(path)})
        except IpamError as error:
            _printed(error.message + error.details)

    def _network(self, path: Path, _: bytes) -> None:
        try:
            load_network(SubnetsConfig(custom_networking=True, network_file=path))
        except IpamError as error:
            _printed(error.message + error.details)

    def _checkpoint(self, _: Path, content: bytes) -> None:
        found = parse_checkpoint(content)
        known = [one for one in found if one.address is not None]
        again = parse_checkpoint(render_checkpoint(known))
        if [(one.key, one.address) for one in again] != [(one.key, one.address) for one in known]:
            raise Violation("written", f"what was read is not what is written of it: {known}")

    def _note(self, path: Path, _: bytes) -> None:
        node = self._aws_node(note=path)
        str(node.last_sign())
        str(node.has_run_since())
        node.finish()
        if node.is_exporting:
            node.end_export()

    def _other_conflist(self, path: Path, _: bytes) -> None:
        node = self._aws_node(conflist=path)
        name = node.network_name()
        render_checkpoint((), network_name=name)

    def _conflist(self, path: Path, _: bytes) -> None:
        settings = Settings(daemon=DaemonConfig(conflist_path=path))
        conflist.difference(settings)
        conflist.write(settings)
        if conflist.difference(settings):
            raise Violation("written", "what was written is not what is there")

    def _first_conflist(self, path: Path, _: bytes) -> None:
        first = self._root / "net.d" / "00-first.conf"
        ours = conflist.ConflistFile(Settings(daemon=DaemonConfig(conflist_path=first.with_name("10-ours.conflist"))))
        ours.write(SUPPORTED_VERSIONS)
        path.replace(first)
        str(first_conflist(ours.path, [ours.own_part(SUPPORTED_VERSIONS)]))

    def _plugin_chain(self, path: Path, _: bytes) -> None:
        directory, binaries = self._root / "chain.d", self._root / "binaries"
        directory.mkdir(exist_ok=True)
        binaries.mkdir(exist_ok=True)
        (binaries / "vpc-cni").touch(mode=0o755)
        path.replace(directory / "10-ours.conflist")
        with contextlib.suppress(ChainedPluginMissingError):
            PluginChain(directory).require_plugins([str(binaries)])

    def _history(self, path: Path, _: bytes) -> None:
        directory = self._root / "history"
        directory.mkdir(exist_ok=True)
        path.rename(directory / f"{segments.KINDS[0]}-00000001.jsonl")
        found = reading.read(directory, "ns/pod").records + reading.read_since(directory, self._clock.now()).records
        for record in found:
            if encoding.decode(encoding.encode(record)) is None:
                raise Violation("written", f"a record that was read cannot be read again: {record}")

    def _operator_freeze(self, path: Path, _: bytes) -> None:
        path.rename(self._root / OPERATOR_NAME)
        freeze = self._freeze()
        OperatorFreeze(freeze, run_dir=self._root, boot_id=BOOT_ID, clock=self._clock).restore()
        for one in freeze.in_force():
            _printed(one.reason)

    def _drain_hook(self, path: Path, _: bytes) -> None:
        freeze = self._freeze()
        DrainHookFile(freeze, path=path).check()
        for one in freeze.in_force():
            _printed(one.reason)

    def _spool(self, path: Path, _: bytes) -> None:
        directory = self._root / "spool"
        directory.mkdir(exist_ok=True)
        path.rename(directory / "del-1-1000000")
        with SpoolDirectory(self._root, clock=self._clock).replay() as entries:
            for entry in entries:
                _printed(str(entry.key))
                entry.done()
        shutil.rmtree(self._root / "spool-bad", ignore_errors=True)

    def _plugin_list(self, path: Path, _: bytes) -> None:
        plugin_bundle._read_list(path)

    def _plugin_versions(self, _: Path, content: bytes) -> None:
        with contextlib.suppress(ValueError):
            parse_versions(content)

    def _eniconfig(self, path: Path, _: bytes) -> None:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = ipamctl(["convert-eniconfig", str(path)])
        _printed(out.getvalue() + err.getvalue())
        if status == 0:
            path.write_text(out.getvalue())
            load_network(SubnetsConfig(custom_networking=True, network_file=path))

    def _chart_values(self, path: Path, _: bytes) -> None:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            ipamctl(["convert-values", str(path)])
        _printed(out.getvalue() + err.getvalue())

    def _nftables(self, _: Path, content: bytes) -> None:
        nft = Nftables(cast("Any", None))
        nft.run = lambda *_args, **_named: content.decode("utf-8", "replace")  # type: ignore[method-assign]
        for chain in nft_chains.read_chains(nft.query("list chains")):
            _printed(str(chain))

    def _link(self, _: Path, content: bytes) -> None:
        """What others choose in the kernel's announcement of a link: its name, alias and kind."""
        name, alias, kind, *_rest = *content.split(b"\0", 2), b"", b""
        info = attribute(uapi.IFLA_LINKINFO, attribute(uapi.IFLA_INFO_KIND, kind[:64] or b"veth"))
        texts = attribute(uapi.IFLA_IFNAME, name[:15] + b"\0") + attribute(uapi.IFLA_IFALIAS, alias[:255])
        body = messages.LINK.pack(0, 0, 7, 1, 0) + texts + attribute(uapi.IFLA_ADDRESS, b"\2\0\0\0\0\1") + info
        for kind_of in (uapi.RTM_NEWLINK, uapi.RTM_DELLINK):
            for event in host_events([(kind_of, 0, body)], host=cast("Any", None), veth_prefix="eni"):
                str(event)

    def _nft_process(self, _: Path, content: bytes) -> None:
        body = bytes(4) + attribute(uapi.NFTA_GEN_PROC_NAME, content[:16]) + attribute(uapi.NFTA_GEN_PROC_PID, bytes(4))
        (event,) = host_events([(NEW_GENERATION, 0, body)], host=cast("Any", None), veth_prefix="eni")
        if isinstance(event, HostChange):
            _printed(event.process)

    def _aws_node(self, **files: Path) -> FileAwsNode:
        run_dir = self._root / "run"
        shutil.rmtree(run_dir, ignore_errors=True)
        run_dir.mkdir()
        if "note" in files:
            files["note"].rename(run_dir / "aws-node.json")
        (run_dir / "checkpoint").write_bytes(b"{}")
        theirs = files.get("conflist", run_dir / "theirs")
        config = TakeoverConfig(checkpoint=run_dir / "checkpoint", daemon_socket="off", conflist=str(theirs))
        return FileAwsNode(config, run_dir=run_dir, conflist=run_dir / "ours", clock=self._clock, boot_id=BOOT_ID)

    def _freeze(self) -> Freeze:
        silent: Any = SimpleNamespace(report=lambda *_, **__: None, trigger=lambda: None, publish=lambda *_, **__: None)
        return Freeze(clock=self._clock, health=silent, demand=silent)


def _content(random: Random, seed: object) -> bytes | list[tuple[bytes, int]]:
    kind = random.random()
    if kind < 0.03:
        return noise(random, 400)
    if kind < 0.05:
        return [(random.choice((b"[", b'{"a":', b"- ", b"A=1\n", b"\x00", b"&a [*a, ")), random.choice((100, 5000, 400_000)))]
    if isinstance(seed, bytes | str):
        text = seed.encode() if isinstance(seed, str) else seed
        if kind < 0.3 and isinstance(seed, str):  # other values where values are
            lines = seed.split("\n")
            at = random.randrange(len(lines))
            head, mark, _ = lines[at].rpartition(random.choice("=: "))
            lines[at] = head + mark + json_text.text(random, depth=2)
            text = "\n".join(lines).encode("utf-8", "surrogatepass")
        return mutated(random, text)
    text = _with_others(random, seed, random.randrange(1, 12)).encode("utf-8", "surrogatepass")
    return mutated(random, text) if kind < 0.3 else text


def _with_others(random: Random, value: object, depth: int) -> str:
    """A document as JSON, in which some values are any others, left out, or there twice."""
    if random.random() < 0.3 / depth:
        return json_text.text(random, depth=2)
    if isinstance(value, dict):
        members = [(key, _with_others(random, one, depth)) for key, one in value.items() if random.random() > 0.02]
        members += random.sample(members, 1) if members and random.random() < 0.02 else []
        return "{" + ",".join(f"{json.dumps(key)}:{one}" for key, one in members) + "}"
    if isinstance(value, list):
        return (
            "["
            + ",".join(_with_others(random, one, depth) for one in value for _ in range(random.choice((1, 1, 1, 1, 0, 2))))
            + "]"
        )
    return json.dumps(value)


def _printed(text: str) -> None:
    """What people get has nothing that a terminal obeys. Raises: Violation."""
    line = text.replace("\n", " ")
    if printable(line, most=len(line)) != line:
        raise Violation("raw text", f"{text[:300]!r}")


def make() -> Target:
    """Make the target."""
    return NodeFiles()
