"""Run the probe against the lab's EC2 in the lab's time, with the lab's links and metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ipamd.cloud.client import Ec2Client
from ipamd.ipamctl.probing import eni_tags, sender
from ipamd.probe.calls import Calls
from ipamd.probe.report import as_dict
from ipamd.probe.run import run
from ipamd.probe.subject import ProbeSubject
from ipamd.settings import Settings
from tests.lab.cloud_adapter.conftest import Bench

Send = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
Around = Callable[["ProbeOnLab", Send, str, dict[str, Any]], Mapping[str, Any]]


class ProbeOnLab:
    """One run; `around` may do something before, after or instead of each call."""

    def __init__(self, bench: Bench, around: Around | None = None, *, client: Ec2Client | None = None) -> None:
        self.bench = bench
        self.around = around
        self.said: list[str] = []
        self.links: Callable[[], frozenset[str]] = self.plugged_links
        self.metadata: Callable[[str], str | None] = bench.imds.read
        self.first_seen: dict[str, float] = {}
        self.last_seen: dict[str, float] = {}
        self.frozen: dict[str, str] = {}
        self.client = client or Ec2Client(bench.config, region=lambda: bench.vpc.region, model_dir=bench.model_dir)
        self.calls = Calls(self.send, clock=bench.clock, sleep=bench.clock.sleep)
        self.raw = sender(self.client)

    def send(self, api: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """One call, through `around`."""
        return self.around(self, self.raw, api, dict(params)) if self.around else self.raw(api, params)

    def plugged_links(self) -> frozenset[str]:
        """MACs that the lab has plugged into the node."""
        enis = self.bench.vpc.world.attached_to(self.bench.instance_id)
        return frozenset(eni.mac for eni in enis if eni.is_plugged)

    def run(self, *, is_real: bool = True) -> dict[str, Any]:
        """The report."""
        bench = self.bench
        subject = ProbeSubject(
            self.calls,
            links=self.links,
            read_metadata=self.metadata,
            identity=bench.imds.identity(),
            tags=eni_tags(Settings()),
            say=self.said.append,
            is_real=is_real,
            at=bench.clock.now(),
        )
        run(subject)
        return as_dict(subject)


def verdicts(report: Mapping[str, Any]) -> dict[str, str]:
    """Verdict by check."""
    return {check["name"]: check["verdict"] for check in report["checks"]}


def observed(report: Mapping[str, Any], name: str) -> str:
    """What was observed for a check."""
    return next(check["observed"] for check in report["checks"] if check["name"] == name)


def enis_left(bench: Bench) -> list[str]:
    """ENIs besides the primary one."""
    return [eni.eni_id for eni in bench.vpc.world.enis.values() if eni.attachment is None or eni.attachment.device_index != 0]
