"""A pod's annotations in a request: what is read of them, what is refused, and how large a request may be that carries them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ipamd.model.errors import InvalidConfigError
from ipamd.model.failures import FailureCode
from ipamd.model.pod_annotations import CONFIG_SOURCE, MARK, POD_ANNOTATIONS, POD_ENI
from ipamd.pb import cni_pb2
from ipamd.rpc.envelope import MAX_CONFIG_BYTES, decode_attach
from tests.table import each_of

ANNOTATIONS_BYTES = 256 * 1024
"""Of one pod, names and values. Source: apimachinery pkg/api/validation/objectmeta.go, TotalAnnotationSizeLimitB."""

ABSENT = object()


def request(runtime_config: Any = ABSENT, **further: Any) -> cni_pb2.ExecRequest:
    """An ADD whose configuration has this runtimeConfig."""
    conf = {"cniVersion": "1.0.0", "name": "vpc-ipamd", "type": "vpc-cni"} | further
    if runtime_config is not ABSENT:
        conf["runtimeConfig"] = runtime_config
    return cni_pb2.ExecRequest(
        verb="ADD", container_id="c" * 64, ifname="eth0", netns="/run/netns/x", config=as_go(conf), protocol_min=1, protocol_max=1
    )


def as_go(conf: Any) -> bytes:
    """As libcni writes it: sorted, and what HTML takes for markup escaped."""
    text = json.dumps(conf, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text.encode()


def handed(annotations: Any) -> dict[str, Any]:
    """What containerd and CRI-O put there."""
    return {POD_ANNOTATIONS: annotations}


@each_of(
    [
        (ABSENT, None),
        (None, None),
        ({}, None),
        ({"portMappings": [], "bandwidth": None}, None),
        (handed(None), None),
        (handed({}), {}),
        (handed({"team": "blue", "n": 7, "o": {}}), {}),
        (
            handed({"team": "blue", MARK: "required", POD_ENI: "[]", CONFIG_SOURCE: "api"}),
            {MARK: "required", POD_ENI: "[]", CONFIG_SOURCE: "api"},
        ),
        (handed({MARK: ""}), {MARK: ""}),
    ]
)
def test_what_is_read(runtime_config: Any, annotations: dict[str, str] | None) -> None:
    """Three of them, and whether any were handed over at all; what else is there is another's."""
    assert decode_attach(request(runtime_config)).annotations == annotations


@each_of([7, "x", [], [[]], handed(7), handed("x"), handed([]), handed({MARK: 7}), handed({MARK: None}), handed({POD_ENI: {}})])
def test_what_is_refused(runtime_config: Any) -> None:
    """Another type than text: CNI code 7, never a pod that seems to want nothing."""
    with pytest.raises(InvalidConfigError) as refused:
        decode_attach(request(runtime_config))
    assert refused.value.failure in (FailureCode.ANNOTATIONS_FORM, FailureCode.ANNOTATION_VALUES)


def test_a_repeated_add_is_the_same_request() -> None:
    """A sandbox's annotations stay as they were, so that its repeated ADD has the same digest; another sandbox's differ."""
    first, again = (decode_attach(request(handed({MARK: "required"}))) for _ in range(2))
    later = decode_attach(request(handed({MARK: "required", POD_ENI: "[{}]"})))
    assert first.config_digest == again.config_digest != later.config_digest


@pytest.mark.parametrize("letter", ["x", '"', "<", "\x01", "\u2028", "é"])
def test_the_most_that_kubernetes_allows(letter: str) -> None:
    """256 KiB of annotations, whatever JSON makes of them, with a result and more beside: such a pod's sandbox must be deleted too."""
    most = letter * (ANNOTATIONS_BYTES // len(letter.encode()))
    made = request(handed({"a": most, MARK: "none"}), prevResult={"cniVersion": "1.0.0", "interfaces": [], "ips": []})
    assert len(made.config) < MAX_CONFIG_BYTES - 128 * 1024
    assert decode_attach(made).annotations == {MARK: "none"}
