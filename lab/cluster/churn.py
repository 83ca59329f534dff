"""Pods that come and go while something else happens."""

from __future__ import annotations

import threading
from collections import deque

from lab.cluster import objects
from lab.cluster.api import Api
from lab.cluster.errors import ApiError

EVERY_S = 1.0  # ours, because: two cores make a pod in a third of this, and have the rest for a cluster
ALIVE = 6
"""At most so many at once: each lives about as many seconds."""

CONTROL_GROUP, ONE_IN = "of-host", 3
"""Of so many pods one is of its node's network: what it takes to start is the machine's own time, on which no daemon has a say."""


class Churn:
    """Creates a pod each second and deletes the oldest of ALIVE, from its making until `close`. Concurrency: any thread."""

    def __init__(self, api: Api) -> None:
        """It begins at once."""
        self.problems: list[str] = []
        self._api = api
        self._alive: deque[str] = deque()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="churn")
        self._thread.start()

    def close(self) -> None:
        """End it, and delete what is left; idempotent."""
        self._closed.set()
        self._thread.join()
        while self._alive:
            self._delete(self._alive.popleft())

    def _run(self) -> None:
        number = 0
        while not self._closed.wait(EVERY_S):
            number += 1
            of_host = number % ONE_IN == 0
            name = f"{CONTROL_GROUP if of_host else 'churn'}-{number}-{id(self):x}"
            try:
                self._api.create(objects.collection("pods"), objects.lone_pod(name, of_host=of_host))
                self._alive.append(name)
            except ApiError as error:
                self.problems.append(str(error))
            if len(self._alive) > ALIVE:
                self._delete(self._alive.popleft())

    def _delete(self, name: str) -> None:
        try:
            self._api.delete(f"{objects.collection('pods')}/{name}")
        except ApiError as error:
            self.problems.append(str(error))
