"""Check that pods stay reachable while something happens to their node: by echo requests, and by connections that are open meanwhile.

The kernel answers echo requests in the pod's namespace. So no program of the pod must run, and a busy machine does not look like a
lost packet.
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
"""A pod that does not answer for this long counts as silent. Ours: five echo requests, so that one lost packet does not count."""

EVERY_S = 0.1


class Flow:
    """Sends an echo request to each address about ten times a second, and holds a connection to each address.

    rounds: how often all addresses were asked.
    silent: addresses that did not answer for SILENCE_S, once for each such time.
    Concurrency: one thread.
    """

    def __init__(self, netns_path: str, addresses: Iterable[str]) -> None:
        """Connect to the addresses and start to ask. `netns_path`: the namespace from which that is done.

        Raises: OSError if a connection cannot be made.
        """
        self.rounds = 0
        self.silent: list[str] = []
        self._addresses = sorted(addresses)
        self._netns_path = netns_path
        self._held = [Connection(netns_path, address, objects.PORT) for address in self._addresses]
        for connection in self._held:
            connection.connect()
            connection.auto_open = 0  # so that http.client does not replace a connection that was cut
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flow")
        self._thread.start()

    def close_asking(self) -> None:
        """Stop asking; the connections stay open. Idempotent."""
        self._closed.set()
        self._thread.join()

    def close(self) -> None:
        """Stop asking and close the connections; idempotent."""
        self.close_asking()
        for connection in self._held:
            connection.close()

    def verdict(self) -> tuple[bool, str]:
        """Stop asking, try each connection once, and close all.

        Returns: whether no address was silent and each connection still answers, and the evidence as a text.
        """
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
