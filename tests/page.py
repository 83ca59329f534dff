"""The page of a node of fakes, served on loopback, for the tests over HTTP and in a browser."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ipamd.ipamctl.client import plain, request_of
from ipamd.ipamctl.page import Answers, PagePort
from ipamd.ipamctl.page_state import state
from ipamd.ipamctl.verb import Answer, Ask
from ipamd.model.pool_settings import PoolSettings
from tests.fakes.node import FakeNode
from tests.patience import PATIENCE_S

HOSTILE = "<script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">&amp;\u202egnp.exe\x1b[31m"
"""What a name must not do: end a tag, load, run, turn the line around, or colour a terminal."""


class Shown:
    """A page's port, and how to ask it."""

    def __init__(self, node: FakeNode, *, token_file: Path | None = None) -> None:
        self.node = node
        self.node_name = "ip-10-0-0-10.ec2.internal"
        self.docs_url = ""

        def daemon(rpc: str, **fields: object) -> Answer:
            return plain(getattr(node.app.introspection, rpc)(request_of(rpc, **fields)))

        self.port = PagePort(0, answers=self._answers(daemon, token_file))
        self.port.start()

    def _answers(self, daemon: Ask, token_file: Path | None) -> Answers:
        return Answers(token_file=token_file, state=lambda: state(daemon, docs_url=self.docs_url), node=self.node_name)

    def get(
        self, path: str = "/", headers: Mapping[str, str] | None = None, *, method: str = "GET"
    ) -> tuple[int, dict[str, str], bytes]:
        """Ask; status, headers with names in lower case, body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, headers=dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()


@contextmanager
def shown(node: FakeNode, *, token_file: Path | None = None) -> Iterator[Shown]:
    """Serve the page of a node while the block runs."""
    made = Shown(node, token_file=token_file)
    try:
        yield made
    finally:
        made.port.close()


def add_named(node: FakeNode, container_id: str, pod_name: str) -> None:
    """ADD of a sandbox whose runtime names its pod so."""
    from ipamd.core.deadline import Deadline, StepTimer

    request = node.request(container_id)
    request = replace(request, names=replace(request.names, pod_name=pod_name))
    node.attacher.attach_sandbox(request, deadline=Deadline.after(node.clock, 60.0), steps=StepTimer(node.clock))


def busy_node(folder: Path) -> FakeNode:
    """A node that is ready, of two ENIs with nine slots each, with ten pods and one that has just gone."""
    folder.mkdir()
    node = FakeNode(folder, settings=PoolSettings(warm_ip_target=3))
    node.bring_up()
    node.health.mark_ready()
    names = "web-5d9c7-x2k4p web-5d9c7-9wq2z api-0 api-1 queue-7f6b-lm8nd cache-0 job-28-tt7rk dns-66cb-qp5vx mail-0 search-0 search-1"
    for number, name in enumerate(names.split()):
        node.clock.advance(7.0)
        add_named(node, f"{number:02d}" + "c0ffee" * 10, name)
        node.pool.cycle()
    node.delete("06" + "c0ffee" * 10)
    return node
