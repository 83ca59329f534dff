"""Find objects that a daemon of ours has left in the kernel since the machine booted.

A file in the run directory shows that a daemon has run, but it may be deleted with the directory. Links, rules and tables stay until
the next boot: if they exist without a datastore, rows were lost (I8, I21).
"""

from __future__ import annotations

from contextlib import closing

from ipamd.kernel import uapi
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables
from ipamd.kernel.survey import survey
from ipamd.model.errors import IpamError, log_text
from ipamd.model.family import IPV4, IPV6
from ipamd.model.kernel import KernelSurvey

TABLE_PREFIX = "vpc-ipamd"
"""The names of all our nftables tables begin with this (`ipamd/kernel/ruleset.py`)."""


def survey_both_families(*, veth_prefix: str) -> KernelSurvey:
    """Survey the wiring of sandboxes of both families, in the calling thread's namespace. Raises: KernelDumpError, WiringError."""
    with closing(HostNetns()) as host, host.netlink() as sock:
        return survey(sock, veth_prefix=veth_prefix, families=(IPV4, IPV6))


def find_traces(*, veth_prefix: str) -> str:
    """Describe the first trace in the calling thread's namespace; "" if there is none.

    If the kernel does not answer, the text says so, because a missing answer does not prove that there is no trace (I11).
    """
    try:
        return _find_table() or _find_wiring(veth_prefix)
    except (IpamError, OSError) as error:
        return f"the kernel gave no answer: {log_text(error)}"


def _find_table() -> str:
    with closing(HostNetns()) as host:
        # libnftables ends the process if it cannot open a netfilter socket. Opening one here raises WiringError instead.
        host.open_netlink(protocol=uapi.NETLINK_NETFILTER).close()
        for line in Nftables(host).run("list tables\n").splitlines():
            if f" {TABLE_PREFIX}" in line:
                return f"nftables {line.strip()}"
    return ""


def _find_wiring(veth_prefix: str) -> str:
    with closing(HostNetns()) as host, host.netlink() as sock:
        # One survey for each family, because `has_own_rule` is true only if every surveyed family has the rule.
        for family in (IPV4, IPV6):
            seen = survey(sock, veth_prefix=veth_prefix, families=(family,))
            if seen.has_own_rule or seen.own_routes:
                return "routing of ours"
    return seen.trace
