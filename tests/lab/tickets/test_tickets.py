"""Each trouble of docs/troubleshooting.md on a node that has it: the page's command, and the page's words in its answer."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from ipamd.ipamctl.absence import LOOP_STARTS
from ipamd.model.time_text import rfc3339
from lab.fabric import talk
from lab.node.node import REPOSITORY
from lab.vpc.model import Eni
from tests.lab.tickets.screens import MODULES, keep_screens
from tests.patience import PATIENCE_S
from tests.rig import Rig, rig, wait_until
from tests.task_pages import Runner, Section, commands, sections

pytestmark = [pytest.mark.privileged, pytest.mark.heavy]

TROUBLES = commands("troubleshooting.md", Runner.TROUBLED)
PAGE = {heading: section for heading, section in sections("troubleshooting.md").items() if set(section.commands) & set(TROUBLES)}
NO_ADDRESS = "A pod does not start: code 11, try again later"
ASKED: set[str] = set()
"""Headings whose section was looked for."""

RUN: set[str] = set()
"""Commands that were run, as the page has them."""

TWO_LOOKS_S = 90.0
"""Bound on waiting for what needs two looks at EC2, half a minute apart."""

ASK_AGAIN_S = 0.5
"""Between two runs of `ipamctl` that wait for an answer: each costs as much of a core as its start."""


def ask(
    made: Rig, command: str, *, words: Mapping[str, str] | None = None, env: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a page's command in the node, its words in capitals replaced: exit status, and what it printed."""
    RUN.add(command)
    arguments = [(words or {}).get(one, one) for one in shlex.split(command)]
    argv = [sys.executable, "-m", MODULES[arguments[0]], *arguments[1:]]
    done = made.node.run(argv, cwd=str(REPOSITORY), env=made.driver.environment | dict(env or {}), check=False, timeout_s=120)
    return done.returncode, done.stdout + done.stderr


def section(heading: str) -> Section:
    """A trouble's section; each must be asked for once."""
    ASKED.add(heading)
    return PAGE[heading]


def refuse(made: Rig, api: str, code: str, message: str = "told by the lab") -> None:
    """EC2 refuses every call of an API from now on."""
    made.lab.faults.apply({"apis": {api: {"error": {"code": code, "message": message}}}})


@contextmanager
def growing(**faults: Any) -> Iterator[Rig]:
    """A ready node whose pool wants to grow and cannot."""
    with rig(env={"WARM_IP_TARGET": "2", "MINIMUM_IP_TARGET": "3"}) as made:
        wait_until(lambda: made.pool()["free_count"] == 3, what="the pool is full")
        for api, code in faults.items():
            refuse(made, api, code)
        for number in range(2):
            assert made.add(f"pod-{number}").ok
        yield made


def told(made: Rig, heading: str, *quoted: str, status: int | None = 0, **options: Any) -> None:
    """Wait until the section's first command prints the words, which the page quotes."""
    page = section(heading)
    assert set(quoted) <= page.quoted, f"the page does not quote {set(quoted) - page.quoted}"
    last: list[Any] = []

    def is_told() -> bool:
        last[:] = ask(made, page.commands[0], **options)
        return all(word in last[1] for word in quoted) and status in {None, last[0]}

    wait_until(is_told, what=f"{page.commands[0]} prints {quoted}, status {status}; it printed {last}", pause_s=ASK_AGAIN_S)
    keep_screens(made, " ".join([heading, *quoted[:1]]), page.commands[0], options.get("words", {}))


def test_a_pod_gets_no_address() -> None:
    """maxPods is reached."""
    with rig(env={"VPC_IPAMD_MAX_PODS": "2"}) as made:
        replies = [made.add(f"pod-{number}") for number in range(3)]
        assert [reply.ok for reply in replies] == [True, True, False]
        assert "the pool has reached maxPods" in str(replies[-1].body)
        told(made, NO_ADDRESS, "the pool has reached maxPods", status=None)


def test_who_had_this_address() -> None:
    """After its DEL."""
    with rig() as made:
        address = made.add("web").address
        had_at = datetime.now(UTC)
        assert made.delete("web").ok
        words = {"ADDRESS": str(address), "TIME": rfc3339(had_at)}
        told(made, "Who had this address", "default/web", words=words)
        assert made.driver.end(signal.SIGTERM, timeout_s=PATIENCE_S) == 0  # a killed one may lack its last second
        for command in section("Who had this address").commands:
            status, text = ask(made, command, words=words)
            assert (status, "default/web" in text) == (0, True), f"without a daemon: {command}: {text}"


@pytest.mark.parametrize(
    ("code", "quoted"),
    [
        ("InsufficientFreeAddressesInSubnet", ("InsufficientFreeAddressesInSubnet", "next try")),
        ("RequestLimitExceeded", ("RequestLimitExceeded",)),
        ("UnauthorizedOperation", ("UnauthorizedOperation", "AssignPrivateIpAddresses")),
    ],
)
def test_ec2_refuses(code: str, quoted: tuple[str, ...]) -> None:
    """The pool cannot grow, and says why; pods that run answer, and a new one gets the address that is there. Once the cause is mended
    the page's second command has the pool grow at once, and the status says that it is over."""
    with growing(AssignPrivateIpAddresses=code, CreateNetworkInterface=code) as made, talk.Servers() as servers:
        told(made, NO_ADDRESS, *quoted, status=None)
        for name, address in made.attachments().items():
            servers.add(name, made.node.netns_path(f"/run/netns/{name}"), address=address)
        serve(made, servers, "meanwhile")
        assert answering(made) == ["meanwhile", "pod-0", "pod-1"]
        made.lab.faults.clear()
        status, text = ask(made, section(NO_ADDRESS).commands[1])
        assert (status, "refused before" in text) == (0, code != "RequestLimitExceeded"), text  # throttling ends by itself
        if code != "RequestLimitExceeded":
            wait_until(lambda: made.pool()["free_count"] == 2, what="the pool has grown")
            wait_until(lambda: "last error  resolved" in ask(made, section(NO_ADDRESS).commands[0])[1], what="it is over")


def test_a_crash_loop() -> None:
    """A wrong setting: no daemon answers, and the settings say why."""
    with rig(start=False) as made:
        told(made, "The daemon ends by itself", "does not answer", status=3)
        command = section("The daemon ends by itself").commands[1]
        status, text = ask(made, command, env={"WARM_IP_TARGET": "many"})
        assert status == 2, text
        assert "WARM_IP_TARGET" in text
        for _ in range(LOOP_STARTS):
            made.start(wait=False, env={"WARM_IP_TARGET": "many"})
            wait_until(lambda: not made.driver.is_running, what="the settings end it")
        told(made, "The daemon ends by itself", "crash loop", status=3)


def test_a_daemon_that_is_stopped() -> None:
    """A process has the socket and does nothing; it is named, with what lets it go on."""
    with rig() as made:
        assert made.daemon is not None
        os.kill(made.daemon.pid, signal.SIGSTOP)
        try:
            told(made, "The daemon ends by itself", "is stopped", status=3)
        finally:
            os.kill(made.daemon.pid, signal.SIGCONT)
        told(made, "Is the new release healthy", "ready")


def test_too_many_addresses() -> None:
    """WARM_ENI_TARGET=1 holds a whole ENI more."""
    with rig() as made:
        assert made.add("pod").ok
        wait_until(lambda: made.pool()["total_count"] == 18, what="two full ENIs", timeout_s=120)
        assert made.delete("pod").ok
        told(made, "The node holds too many addresses", "in excess")
        status, text = ask(made, section("The node holds too many addresses").commands[1])
        assert (status, "14 in excess" in text) == (0, True), text


def test_a_target_is_changed() -> None:
    """The settings file is read again, and the pool follows."""
    with rig(start=False, env={"VPC_IPAMD_SETTINGS_FILE": "/run/settings/file"}) as made:
        file = Path(made.node.root + "/run/settings/file")
        file.parent.mkdir(parents=True)
        file.write_text("WARM_IP_TARGET=2\n")
        made.start()
        file.write_text("WARM_IP_TARGET=5\nVPC_IPAMD_RELOAD_JITTER_SECONDS=0\n")
        assert made.daemon is not None
        made.daemon.send_signal(signal.SIGHUP)
        told(made, "Change a target on a live fleet", "generation 2", status=None)
        wait_until(lambda: made.pool()["free_count"] == 5, what="the pool follows")


@contextmanager
def detached_by_hand() -> Iterator[tuple[Rig, talk.Servers, Eni, list[str]]]:
    """A node whose secondary ENI, with three pods on it, was detached by hand; yields the ENI as it was, and the pods on it."""
    with rig() as made, talk.Servers() as servers:
        pods = {}
        for number in range(12):
            pods[name] = serve(made, servers, name := f"pod-{number}")
        (gone,) = [
            eni for eni in made.lab.vpc.enis_of(made.node.instance_id) if set(eni.secondary_addresses) & set(pods.values())
        ][1:]
        on_it = [name for name, address in pods.items() if address in gone.secondary_addresses]
        assert len(on_it) == 3
        host = made.lab.primary_address("host-a")
        servers.add("host-a", made.lab.hosts["host-a"].path, address=host)
        assert answering(made) == sorted(pods)
        made.lab.vpc.hands.detach(gone.eni_id)
        told(made, "An ENI was detached by hand", "external changes", status=None)
        assert answering(made) == sorted(set(pods) - set(on_it)), "pods of the ENI are silent, others are not"
        heard = {name: talk.ask(made.node.netns_path(f"/run/netns/{name}"), host) for name in pods}
        assert sorted(name for name, answer in heard.items() if answer is None) == sorted(on_it), "nor can they reach anybody"
        yield made, servers, gone, on_it


def serve(made: Rig, servers: talk.Servers, name: str) -> IPv4Address:
    """Add a pod that answers under its name."""
    address = made.add(name).address
    servers.add(name, made.node.netns_path(f"/run/netns/{name}"), address=address)
    return address


def answering(made: Rig) -> list[str]:
    """The pods that answer a host of the VPC."""
    host = made.lab.hosts["host-a"].path
    heard = [talk.ask(host, address) for address in made.attachments().values()]
    return sorted(answer.by for answer in heard if answer is not None)


@pytest.mark.slow
def test_an_eni_detached_by_hand() -> None:
    """Its pods are silent and stay so; the audit names them, and once they are deleted their successors answer."""
    with detached_by_hand() as (made, servers, gone, on_it):
        page = section("An ENI was detached by hand")
        assert {"without network", "has it and no network", "kubectl delete pod"} <= page.quoted
        status, text = ask(made, page.commands[1])
        assert (status, f"{len(on_it)} sandboxes on it without network" in text) == (1, True), text
        assert all(f"default/{name}" in text for name in on_it), "named at once, before EC2 has confirmed it"

        def named() -> list[str]:
            lines = ask(made, page.commands[1])[1].splitlines()
            return sorted(line.split("(default/")[1].split(")")[0] for line in lines if "has it and no network" in line)

        wait_until(lambda: named() == sorted(on_it), what=f"the audit names {on_it}", timeout_s=TWO_LOOKS_S, pause_s=ASK_AGAIN_S)
        assert not set(answering(made)) & set(on_it), "nothing comes back by itself"
        for name in named():
            assert made.delete(name).ok
        wait_until(
            lambda: not {"ec2 differences", "lost addresses"} & {one["subject"] for one in (made.status() or {})["conditions"]},
            what="the conditions end with the pods",
            timeout_s=TWO_LOOKS_S,
            pause_s=ASK_AGAIN_S,
        )
        successors = [f"successor-of-{name}" for name in on_it]
        for name in successors:
            assert serve(made, servers, name) not in gone.secondary_addresses
        assert answering(made) == sorted(made.attachments())
        assert set(successors) <= set(answering(made))
        made.lab.vpc.hands.delete(gone.eni_id)
        wait_until(
            lambda: "external changes" not in ask(made, page.commands[0])[1],
            what="the ENI is forgotten",
            timeout_s=TWO_LOOKS_S,
            pause_s=ASK_AGAIN_S,
        )
        made.assert_sound(expected=12)


@pytest.mark.slow
def test_an_eni_detached_by_hand_and_attached_again() -> None:
    """Its pods answer again, at whatever place it is; also after EC2 has confirmed that it was gone."""
    with detached_by_hand() as (made, _, gone, on_it):
        page = section("An ENI was detached by hand")
        confirmed = "has it and no network"
        wait_until(
            lambda: confirmed in ask(made, page.commands[1])[1],
            what="EC2 has confirmed it",
            timeout_s=TWO_LOOKS_S,
            pause_s=ASK_AGAIN_S,
        )
        made.lab.vpc.hands.attach_existing(gone.eni_id, made.node.instance_id)
        made.lab.settle()
        wait_until(
            lambda: answering(made) == sorted(made.attachments()),
            what=f"{on_it} answer again",
            timeout_s=TWO_LOOKS_S,
            pause_s=ASK_AGAIN_S,
        )
        wait_until(
            lambda: "no network" not in ask(made, page.commands[1])[1],
            what="nothing is lost",
            timeout_s=TWO_LOOKS_S,
            pause_s=ASK_AGAIN_S,
        )


def test_connectivity() -> None:
    """What is ours is repaired, so that packets pass again, and the sources agree: then the cause is elsewhere."""
    with rig() as made, talk.Servers() as servers:
        address = serve(made, servers, "pod")
        assert answering(made) == ["pod"]
        made.node.run(["ip", "route", "del", f"{address}/32"])
        wait_until(lambda: answering(made) == ["pod"], what="the route is put back, and the pod answers")
        told(made, "Pods have no connectivity", "agree")


def test_a_destination_is_not_reached() -> None:
    """The pod's way out is open, then a rule of others drops its packets."""
    heading = "A pod cannot reach a database (RDS)"
    with rig() as made:
        assert made.add("web").ok
        words = {"POD": "default/web", "ADDRESS:PORT": "10.0.200.9:5432"}
        told(made, heading, "as far as this node decides", "nothing of this node is in the way", "next:", words=words)
        made.node.netns.tool(["ip", "rule", "add", "prio", "400", "to", "10.0.200.9", "prohibit"])
        told(made, heading, "does not reach", status=1, words=words)
        made.node.netns.tool(["ip", "rule", "del", "prio", "400"])
        told(made, heading, "as far as this node decides", words=words)


def test_the_wrong_subnet() -> None:
    """A subnet of the zone without the tag is named with that reason; the ENIs are in the other one."""
    heading = "Pods are in the wrong subnet"
    with rig() as made:
        assert made.add("web").ok
        told(made, heading, "used for new ENIs", "not the node's own, and without the tag")
        status, text = ask(made, section(heading).commands[1])
        (own,) = {eni.subnet_id for eni in made.lab.vpc.enis_of(made.node.instance_id)}
        assert (status, own in text) == (0, True), text


def test_metadata_is_blocked() -> None:
    """A start waits and says why; once metadata answers it goes on by itself."""
    with rig(start=False) as made:
        made.lab.faults.apply({"unreachable": {"imds": "refuse"}})
        made.start(wait=False)
        told(made, "Instance metadata is blocked", "NOT READY: instance metadata", "no connection to", status=1)
        made.lab.faults.clear()
        made.wait_ready()


def test_connections_end() -> None:
    """On a type whose security groups forget a connection after minutes."""
    with rig(instance_type="m8i.16xlarge") as made:
        told(made, "Connections end after minutes without packets", "security groups forget a TCP connection after 350 s")


def test_how_many_pods_fit() -> None:
    """On this node, and on a type that is not there."""
    with rig() as made:
        told(made, "How many pods fit", "LIMITED BY")
        status, text = ask(made, section("How many pods fit").commands[1])
        assert (status, "8 ENIs x 29 slots" in text) == (0, True), text
        status, text = ask(made, section("How many pods fit").commands[2])
        assert (status, "at most 110 addresses" in text) == (0, True), text


def test_the_new_release() -> None:
    """The status of a node that has just started."""
    with rig() as made:
        told(made, "Is the new release healthy", "ready")


def test_egress_is_used_up() -> None:
    """What limits a node with egress is told, the range among it."""
    with rig(env={"ENABLE_V6_EGRESS": "true"}) as made:
        told(made, "Egress is used up", "LIMITED BY")


def test_every_question_was_asked() -> None:
    """No section without a test, and no command that was not run."""
    assert set(PAGE) - ASKED == set()
    assert set(TROUBLES) - RUN == set()
