"""Create and delete pods while something else happens to the cluster."""

from __future__ import annotations

import threading
from collections import deque

from lab.cluster import objects
from lab.cluster.api import Api
from lab.cluster.errors import ApiError

EVERY_S = 1.0  # ours: two cores make a pod in a third of a second, so the cluster has the rest of them
ALIVE = 6
"""Most pods at the same time. One is made each second, so each lives for about six seconds."""

CONTROL_GROUP, ONE_IN = "of-host", 3
"""One pod of ONE_IN uses its node's network, so that it starts without the daemon. The start times of these pods, whose names begin
with CONTROL_GROUP, show the time that the machine itself takes."""


class Churn:
    """Creates a pod each second, and deletes the oldest when there are more than ALIVE, until `close`. Concurrency: any thread."""

    def __init__(self, api: Api) -> None:
        """Start the thread."""
        self.problems: list[str] = []
        self._api = api
        self._alive: deque[str] = deque()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="churn")
        self._thread.start()

    def close(self) -> None:
        """End the thread and delete the remaining pods; idempotent."""
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
