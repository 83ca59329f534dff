"""Make the raw EC2 calls of a probe. They are counted, bounded and paced, and every answer is recorded.

`ipamd/cloud/ec2.py` is not used, because it retries, translates codes and waits, and so hides the unusual answers that a probe looks
for. Guards I13: this module enforces the bound on calls, and reserves a part of them for the clean-up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ipamd.model.record import dataclass, field, replace
from ipamd.ports.process import Clock

CHECK_CALLS = 70
CLEANUP_CALLS = 30
"""Most EC2 calls before the clean-up (CHECK_CALLS), and during the clean-up (CLEANUP_CALLS). Ours: if EC2 answers without a lag, the
steps of a run make about 50 calls, and each wait for a lagging answer makes up to seven. Checks that the run does not reach are
reported as unknown."""

PAUSE_S = 0.2
"""Pause between two calls, in seconds. Ours: a probe makes at most five calls a second. For each API in use, EC2 allows an account at
least that many in the long run, so a probe alone does not reach the account's limit.

Source: https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html.
"""

THROTTLED = re.compile(r"RequestLimitExceeded|Throttl|TooManyRequests")
THROTTLE_WAITS_S = (2.0, 5.0)
"""Waits in seconds after throttled attempts of a call. If the attempt after the last wait is throttled too, that is the call's answer.
Ours: a probe must not add load to a throttled account."""

PAGE_SIZE = 1000
"""ENIs in a page of a list, as in the daemon. Source: amazon-vpc-cni-k8s pkg/awsutils/awsutils.go, describeENIPageSize."""

PAGES_MAX = 5
"""The largest number of pages of one list. Ours: 5,000 ENIs of one subnet or VPC. A longer list counts as no answer, so that the bound
on calls holds."""

NO_ANSWER = "(no answer)"
"""Stands for EC2's code in a call that got no answer."""

SILENT_MAX = 3
"""After this many successive calls without an answer the checks end. Ours: each such call takes as long as the setting HTTP_TIMEOUT,
so more of them would only delay the report."""

MESSAGE_MAX = 300
"""The largest number of characters of EC2's message that are kept."""


class Ended(Exception):
    """Raised to end the run, for example because a stop was requested, the bound on calls is reached, or the node is unsuitable. The
    clean-up follows.
    """


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """One call and its answer.

    number: the number of the call in this run; the first call has 1.
    about: the object of the call, for the report.
    code: EC2's error code; empty on success, NO_ANSWER if the outcome is not known.
    message: EC2's error message, cut, without account numbers.
    status: the HTTP status; 0 without an answer.
    sent_s, answered_s: monotonic times.
    body: EC2's answer as botocore parsed it; empty if the call was not accepted.
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
        """Whether EC2 accepted the call."""
        return not self.code

    @property
    def is_lost(self) -> bool:
        """Whether the call may have taken effect although it was not accepted: there was no answer, or EC2 had an internal error."""
        return self.code == NO_ANSWER or self.status >= 500

    @property
    def is_busy(self) -> bool:
        """Whether the call was refused because the object is in use, by either of EC2's two codes."""
        return self.code == "InvalidNetworkInterface.InUse" or (self.code == "InvalidParameterValue" and "in use" in self.message)

    @property
    def is_gone(self) -> bool:
        """Whether the call was refused because an object was not found."""
        return self.code.endswith(".NotFound")

    def enis(self) -> list[Mapping[str, Any]]:
        """The ENIs of a Describe, or the single ENI of a Create."""
        created = self.body.get("NetworkInterface")
        if created:
            return [created]
        return list(self.body.get("NetworkInterfaces") or ())

    def eni_ids(self) -> list[str]:
        """The IDs of the ENIs in the answer (`enis`)."""
        return [eni["NetworkInterfaceId"] for eni in self.enis()]

    def __str__(self) -> str:
        if self.ok:
            return "accepted"
        if not self.message:
            return self.code
        return f"{self.code}: {self.message}"


@dataclass(slots=True)
class Calls:
    """Makes the calls of a run. Only one thread may use it, except for `stop`.

    send: makes one attempt of a call, from the name of the API and its parameters. Raises: botocore's exceptions, and CloudError
        without credentials.
    sleep: sleeps for the given seconds.
    answers: all answers so far.
    """

    send: Callable[[str, Mapping[str, Any]], Mapping[str, Any]]
    clock: Clock
    sleep: Callable[[float], None]
    answers: list[CallAnswer] = field(default_factory=list)
    _limit: int = CHECK_CALLS
    _is_cleaning: bool = False
    _stop_reason: str = ""
    _includes_managed: bool = True

    def stop(self, reason: str) -> None:
        """End the checks before the next call; the clean-up still makes its calls. Safe in a signal handler."""
        self._stop_reason = self._stop_reason or reason

    def begin_cleanup(self) -> None:
        """Allow CLEANUP_CALLS further calls, also after a stop."""
        if not self._is_cleaning:
            self._is_cleaning = True
            self._limit = len(self.answers) + CLEANUP_CALLS

    def check_stop(self) -> None:
        """Raises: Ended if a stop was requested and the clean-up has not begun."""
        if self._stop_reason and not self._is_cleaning:
            raise Ended(self._stop_reason)

    def ask(self, api: str, about: str, **params: Any) -> CallAnswer:
        """Make a call. Only throttled calls are retried.

        Args:
            about: the object, for the report.
        Returns: EC2's answer, also if it is a refusal.
        Raises: Ended before a call is made; CloudError without credentials.
        """
        for wait_s in (*THROTTLE_WAITS_S, 0.0):
            answer = self._once(api, about, params)
            if not THROTTLED.match(answer.code):
                break
            self.sleep(wait_s)
        return answer

    def list_enis(self, about: str, filters: Mapping[str, str]) -> CallAnswer:
        """List the ENIs that pass all filters, page by page: in a large account an empty page need not be the last.

        Returns: the last answer, with all ENIs. If one page is refused, the answer is that refusal and has no ENIs. If there are more
            than PAGES_MAX pages, the code is NO_ANSWER, because a part of a list must not pass for the whole (I11).
        Raises: as `ask`.
        """
        params: dict[str, Any] = {
            "Filters": [{"Name": name, "Values": [value]} for name, value in filters.items()],
            "MaxResults": PAGE_SIZE,
        }
        enis: list[Mapping[str, Any]] = []
        for _ in range(PAGES_MAX):
            answer = self.ask_for_enis(about, **params)
            enis += answer.enis()
            if not answer.body.get("NextToken"):
                break
            params["NextToken"] = answer.body["NextToken"]
        if not answer.ok:
            return replace(answer, body={})
        if answer.body.get("NextToken"):
            return replace(answer, code=NO_ANSWER, message=f"the list has more than {PAGES_MAX} pages", body={})
        return replace(answer, body={"NetworkInterfaces": enis})

    def ask_for_enis(self, about: str, **params: Any) -> CallAnswer:
        """Make a filtered Describe of ENIs. ENIs that AWS services manage are included if the endpoint knows the parameter.

        Raises: as `ask`.
        """
        api = "DescribeNetworkInterfaces"
        if self._includes_managed:
            answer = self.ask(api, about, **params, IncludeManagedResources=True)
            self._includes_managed = answer.code != "UnknownParameter"
            if self._includes_managed:
                return answer
        return self.ask(api, about, **params)

    def _once(self, api: str, about: str, params: Mapping[str, Any]) -> CallAnswer:
        from botocore.exceptions import BotoCoreError, ClientError

        self.check_stop()
        last_codes = [answer.code for answer in self.answers[-SILENT_MAX:]]
        if not self._is_cleaning and last_codes == [NO_ANSWER] * SILENT_MAX:
            raise Ended(f"EC2 has not answered {SILENT_MAX} calls in a row: {self.answers[-1].message}")
        if len(self.answers) >= self._limit:
            raise Ended(f"the bound of {self._limit} calls is reached")
        if self.answers:
            self.sleep(PAUSE_S)
        body: dict[str, Any] = {}
        code, message, status = "", "", 200
        sent_s = self.clock.monotonic()
        try:
            body = dict(self.send(api, params))
        except ClientError as exc:
            error = exc.response.get("Error", {})
            code, message = str(error.get("Code") or "(no code)"), str(error.get("Message", ""))
            status = int(exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        except BotoCoreError as exc:
            code, message, status = NO_ANSWER, f"{type(exc).__name__}: {exc}", 0
        safe_message = re.sub(r"\b\d{12}\b", "ACCOUNT", message)[:MESSAGE_MAX]  # no account numbers, because reports are shared
        answer = CallAnswer(len(self.answers) + 1, api, about, code, safe_message, status, sent_s, self.clock.monotonic(), body)
        self.answers.append(answer)
        return answer
