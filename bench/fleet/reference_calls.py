"""The EC2 calls of a node of the reference. They are repeated as the AWS SDK for Go and amazon-vpc-cni-k8s repeat them."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from random import Random
from typing import Any

from bench.fleet.ec2 import Ec2Model, Refused

SDK_TRIES = 3
SDK_TOKENS = 500
SDK_RETRY_COST = 5
"""Attempts of a call, and the size and cost of a bucket of tokens, which limits repetitions while most calls fail: a repetition takes
tokens, and a success returns some. The waits between attempts are a random part of 2 s, and then of 4 s. Source: aws-sdk-go-v2
aws/retry/standard.go and jitter_backoff.go."""

PERSIST_TRIES = 12
PERSIST_MAX_S = 60.0
"""Attempts of Detach and Delete, and the longest wait between two. Source: amazon-vpc-cni-k8s pkg/awsutils/awsutils.go,
maxENIEC2APIRetries and maxENIBackoffDelay."""

Answer = Mapping[str, Any] | None
Steps = Generator[float, None, None]
"""Actions of a node that take time: a generator that yields the seconds to wait."""


class ReferenceCalls:
    """The calls of one node.

    code: EC2's code of the last refusal.
    no_room_s: time at which a subnet last had too few addresses.
    is_in_doubt: whether an answer was lost, so that the node must compare its data.
    """

    def __init__(self, model: Ec2Model, index: int, draw: Random) -> None:
        self.code = ""
        self.no_room_s = -math.inf
        self.is_in_doubt = False
        self._model, self._index, self._draw = model, index, draw
        self._tokens = SDK_TOKENS

    def persist(self, api: str, params: Mapping[str, Any], *, first_s: float) -> Generator[float, None, bool]:
        """Try a call PERSIST_TRIES times, with pauses that double up to PERSIST_MAX_S. `first_s`: the first pause.

        Returns: whether it succeeded. An error that the object does not exist ends the attempts.
        """
        wait_s = first_s
        for _ in range(PERSIST_TRIES):
            answer = yield from self.call(api, params)
            if answer is not None or self.code.endswith(".NotFound"):
                return answer is not None
            yield wait_s * (1.0 + 0.15 * self._draw.random())
            wait_s = min(wait_s * 2, PERSIST_MAX_S)
        return False

    def call(self, api: str, params: Mapping[str, Any]) -> Generator[float, None, Answer]:
        """Make a call as the SDK does. Returns: the answer; None if it failed, with the code in `code`."""
        for attempt in range(1, SDK_TRIES + 1):
            yield self._model.latency_s(api)
            try:
                answer = self._model.answer(api, params, instance=self._index)
            except Refused as refused:
                self.code = refused.code
                if refused.code.startswith("Insufficient"):
                    self.no_room_s = self._model.world.now_s
                if refused.code == "InternalError":
                    self.is_in_doubt = True
                if refused.status < 500 or attempt == SDK_TRIES or self._tokens < SDK_RETRY_COST:
                    return None
            else:
                self._tokens = min(self._tokens + (SDK_RETRY_COST if attempt > 1 else 1), SDK_TOKENS)
                return answer
            self._tokens -= SDK_RETRY_COST
            yield self._draw.random() * (1 << attempt)
        return None
