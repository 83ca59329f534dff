"""Questions to pods that go on while something happens to their node, and connections that stood before it.

Echo requests are answered by the kernel of the pod's namespace, so a busy machine does not look like a lost packet.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterable
from contextlib import suppress

from lab.cluster import objects
from lab.cluster.http import Connection
from lab.fabric.errors import FabricError
from lab.fabric.ping import ping

SILENCE_S = 0.5
"""Ours: five echo requests. What is longer is a silence."""

EVERY_S = 0.1


class Flow:
    """Asks each address about ten times a second from the namespace at `netns_path`, and holds a connection to each, from its making
    until `close`. Concurrency: one thread."""

    def __init__(self, netns_path: str, addresses: Iterable[str]) -> None:
        """Raises: OSError if one does not take a connection now."""
        self.rounds = 0
        self.silent: list[str] = []
        """Addresses that did not answer for SILENCE_S, once for each such time."""
        self._addresses = sorted(addresses)
        self._netns_path = netns_path
        self._held = [Connection(netns_path, address, objects.PORT) for address in self._addresses]
        for connection in self._held:
            connection.connect()
            connection.auto_open = 0  # one that was cut is not made anew
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flow")
        self._thread.start()

    def close_asking(self) -> None:
        """Ask no more; the connections stand. Idempotent."""
        self._closed.set()
        self._thread.join()

    def close(self) -> None:
        """End it; idempotent."""
        self.close_asking()
        for connection in self._held:
            connection.close()

    def verdict(self) -> tuple[bool, str]:
        """End it. Returns: whether nothing was silent and each connection of before still answers, and the evidence."""
        self.close_asking()
        answers = 0
        for connection in self._held:
            with suppress(OSError, http.client.HTTPException):
                connection.request("GET", "/")
                answers += connection.getresponse().status == 200
        self.close()
        ok = bool(self._held) and self.rounds > 0 and not self.silent and answers == len(self._held)
        silent = f", {len(self.silent)} silences: {', '.join(sorted(set(self.silent)))}" if self.silent else ", none silent"
        asked = f"{len(self._held)} pods asked {self.rounds} times{silent}"
        return ok, f"{asked}; {answers} of {len(self._held)} connections of before answer"

    def _run(self) -> None:
        while not self._closed.wait(EVERY_S):
            try:
                answers = ping(self._netns_path, targets=self._addresses, timeout_s=SILENCE_S)
            except FabricError as error:
                self.silent.append(str(error))
                return
            self.rounds += 1
            self.silent += [str(address) for address, answered in answers.items() if not answered]
