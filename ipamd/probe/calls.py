"""Raw EC2 calls of a probe: counted, bounded, paced and kept as they were answered.

`ipamd/cloud/ec2.py` is not used, because it repairs odd answers: it retries, translates codes and waits. A probe wants to see them.
Guards I13: the bound is enforced here, and a part of it is kept for the clean-up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ipamd.model.record import dataclass, field, replace
from ipamd.ports import Clock

CHECK_CALLS = 70
CLEANUP_CALLS = 30
"""Most EC2 calls before the clean-up, and during it. Ours: a run where EC2 is prompt makes about 50; each wait for a lagging answer
makes up to seven. Checks that find no call left are reported as unknown."""

PAUSE_S = 0.2
"""Between two calls. Ours: the tightest bucket of the APIs in use refills five calls a second for the whole account.

Source: https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html.
"""

THROTTLED = re.compile(r"RequestLimitExceeded|Throttl|TooManyRequests")
THROTTLE_WAITS_S = (2.0, 5.0)
"""Waits after throttling, then it counts as the answer. Ours: a probe must not press a throttled account."""

PAGE_SIZE = 1000
"""As the daemon asks. Source: amazon-vpc-cni-k8s pkg/awsutils/awsutils.go, describeENIPageSize."""

PAGES_MAX = 5
"""Pages of one list. Ours: 5,000 ENIs of one subnet or VPC; what is beyond is not looked at, so that the bound on calls holds."""

NO_ANSWER = "(no answer)"
SILENT_MAX = 3
"""Calls in a row without an answer after which the checks end. Ours: each waits for HTTP_TIMEOUT and tells nothing."""

MESSAGE_MAX = 300


class Ended(Exception):
    """The run ends here: somebody asked for it, the bound on calls is reached, or the node is not fit. The clean-up follows."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One call as it was answered. `code` is empty on success, and NO_ANSWER if the outcome is not known.

    `number` counts from 1; `sent_s` and `answered_s` are monotonic.
    """

    number: int
    api: str
    about: str
    code: str
    message: str
    status: int
    sent_s: float
    answered_s: float
    body: Mapping[str, Any] = field(repr=False)

    @property
    def ok(self) -> bool:
        """Whether EC2 accepted it."""
        return not self.code

    @property
    def is_lost(self) -> bool:
        """Whether it may have taken effect although it was not accepted: no answer, or a fault inside EC2."""
        return self.code == NO_ANSWER or self.status >= 500

    @property
    def is_busy(self) -> bool:
        """Whether it was refused because the object is in use, in either of EC2's wordings."""
        return self.code == "InvalidNetworkInterface.InUse" or (self.code == "InvalidParameterValue" and "in use" in self.message)

    @property
    def is_gone(self) -> bool:
        """Whether it was refused because an object was not found."""
        return self.code.endswith(".NotFound")

    def enis(self) -> list[Mapping[str, Any]]:
        """The ENIs of a Describe, or the one of a Create."""
        one = self.body.get("NetworkInterface")
        return [one] if one else list(self.body.get("NetworkInterfaces") or ())

    def eni_ids(self) -> list[str]:
        """Their IDs."""
        return [entry["NetworkInterfaceId"] for entry in self.enis()]

    def __str__(self) -> str:
        return "accepted" if self.ok else f"{self.code}: {self.message}" if self.message else self.code


@dataclass(slots=True)
class Calls:
    """Makes the calls. One thread. `send`: one attempt of an API with its parameters, which raises botocore's exceptions."""

    send: Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
    clock: Clock
    sleep: Callable[[float], None]
    answers: list[Answer] = field(default_factory=list)
    _limit: int = CHECK_CALLS
    _is_cleaning: bool = False
    _stop_reason: str = ""

    def stop(self, reason: str) -> None:
        """End the checks before the next call; the clean-up still makes its calls. Safe in a signal handler."""
        self._stop_reason = self._stop_reason or reason

    def begin_cleanup(self) -> None:
        """Allow the clean-up's own calls from here on."""
        if not self._is_cleaning:
            self._is_cleaning = True
            self._limit = len(self.answers) + CLEANUP_CALLS

    def check_stop(self) -> None:
        """Raises: Ended if somebody asked for it, unless the clean-up is under way."""
        if self._stop_reason and not self._is_cleaning:
            raise Ended(self._stop_reason)

    def ask(self, api: str, about: str, **params: Any) -> Answer:
        """Make a call; only throttling is retried.

        Args:
            about: the object, for the report.
        Raises: Ended before the call is made; never for what EC2 answers.
        """
        for wait_s in (*THROTTLE_WAITS_S, 0.0):
            answer = self._once(api, about, params)
            if not THROTTLED.match(answer.code):
                break
            self.sleep(wait_s)
        return answer

    def list_enis(self, about: str, filters: Mapping[str, str]) -> Answer:
        """List the ENIs that pass all filters, page by page: in a large account a page may be empty and not the last.

        Returns: the last answer, with the ENIs of all pages; a refused page makes the whole list refused (I11).
        Raises: as `ask`.
        """
        params: dict[str, Any] = {
            "Filters": [{"Name": name, "Values": [value]} for name, value in filters.items()],
            "MaxResults": PAGE_SIZE,
        }
        found: list[Mapping[str, Any]] = []
        for _ in range(PAGES_MAX):
            answer = self.ask("DescribeNetworkInterfaces", about, **params)
            found += answer.enis()
            if not answer.body.get("NextToken"):
                break
            params["NextToken"] = answer.body["NextToken"]
        return replace(answer, body={"NetworkInterfaces": found} if answer.ok else {})

    def _once(self, api: str, about: str, params: Mapping[str, Any]) -> Answer:
        from botocore.exceptions import BotoCoreError, ClientError

        self.check_stop()
        if not self._is_cleaning and [one.code for one in self.answers[-SILENT_MAX:]] == [NO_ANSWER] * SILENT_MAX:
            raise Ended(f"EC2 has not answered {SILENT_MAX} calls in a row: {self.answers[-1].message}")
        if len(self.answers) >= self._limit:
            raise Ended(f"the bound of {self._limit} calls is reached")
        if self.answers:
            self.sleep(PAUSE_S)
        sent_s, body, code, message, status = self.clock.monotonic(), {}, "", "", 200
        try:
            body = dict(self.send(api, params))
        except ClientError as exc:
            error = exc.response.get("Error", {})
            code, message = str(error.get("Code") or "(no code)"), str(error.get("Message", ""))
            status = int(exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        except BotoCoreError as exc:
            code, message, status = NO_ANSWER, f"{type(exc).__name__}: {exc}", 0
        told = re.sub(r"\b\d{12}\b", "ACCOUNT", message)[:MESSAGE_MAX]  # no account numbers: reports are made to be shared
        answer = Answer(len(self.answers) + 1, api, about, code, told, status, sent_s, self.clock.monotonic(), body)
        self.answers.append(answer)
        return answer
