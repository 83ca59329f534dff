"""What tests ask of an error besides its class.

with pytest.raises(WiringError, check=failed(FailureCode.STEP_REFUSED, work="wiring")):
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grpc

from ipamd.model.errors import CloudError, IpamError
from ipamd.model.failures import FailureCode
from ipamd.model.refusals import RefusalCode


class Expected:
    """A question about an error, which shows in the report of a failed test what was expected and what came."""

    def __init__(self, facts_of: Callable[[Any], Mapping[str, object]], **expected: object) -> None:
        """`facts_of`: of an error, what `expected` is compared with, by name."""
        self._facts_of, self._expected, self._facts = facts_of, expected, dict[str, object]()

    def __call__(self, error: BaseException) -> bool:
        """Whether the error has all the expected facts."""
        self._facts = {"error": repr(error), **self._facts_of(error)}
        return self._expected.items() <= self._facts.items()

    def __repr__(self) -> str:
        return f"expected {self._expected}, came {self._facts}"


def _texts(fields: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in fields.items()}


def _failure(error: BaseException) -> Mapping[str, object]:
    return {"failure": error.failure, **error.fields} if isinstance(error, IpamError) else {}


def failed(code: FailureCode, **fields: object) -> Expected:
    """The error is of this code, and these fields have these values as text."""
    return Expected(_failure, failure=code, **_texts(fields))


def failed_by_metadata(path: str = "") -> Expected:
    """Instance metadata failed, in whatever way; `path`: of the request, if that matters."""

    def facts_of(error: BaseException) -> Mapping[str, object]:
        facts = _failure(error)
        return {**facts, "room": str(facts.get("failure", "")).partition("-")[0]}

    return Expected(facts_of, room="metadata", **({"path": path} if path else {}))


def refused_add(code: RefusalCode, **fields: object) -> Expected:
    """An ADD was refused with this code, and these fields have these values as text."""
    return Expected(lambda error: {"refusal": error.refusal, **error.fields}, refusal=code, **_texts(fields))


def refused_by_ec2(code: str, operation: str = "") -> Expected:
    """EC2 refused a call with this code of its own; `operation`: the call, if that matters."""

    def facts_of(error: BaseException) -> Mapping[str, object]:
        return {"code": error.code, "operation": error.operation} if isinstance(error, CloudError) else {}

    return Expected(facts_of, code=code, **({"operation": operation} if operation else {}))


def refused_by_kernel(*numbers: int) -> Expected:
    """The operating system refused with one of these error numbers."""
    return Expected(lambda error: {"is expected": error.errno in numbers}, **{"is expected": True})


def refused_rpc(code: grpc.StatusCode) -> Expected:
    """A call of gRPC ended with this status."""
    return Expected(lambda error: {"code": error.code()}, code=code)


def refused_by_lab(code: str) -> Expected:
    """The lab's EC2 refused with this code of EC2."""
    return Expected(lambda error: {"code": error.code}, code=code)
