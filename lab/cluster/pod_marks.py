"""Check the admission policies of manifests/pod-eni on a real API server: which pods get which mark, and which changes are refused.

The *mark* is the annotation MARK. It says whether the pod must have a branch ENI. On EKS a webhook sets the resource limit of such a
pod. No webhook runs here; the pods have the limit from the beginning. The guarding policy refuses a mark that a later change made
wrong, even if the API server does not call the marking policy again after that change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import yaml

from lab.cluster import objects
from lab.cluster.api import Api, Object
from lab.cluster.errors import ApiError
from lab.node.node import REPOSITORY

MANIFESTS = REPOSITORY / "manifests" / "pod-eni"
COLLECTION = "/apis/admissionregistration.k8s.io/v1"
MARK, POD_ENI = "vpc-ipamd/pod-eni", "vpc.amazonaws.com/pod-eni"
CONTROLLER = "system:serviceaccount:kube-system:eks-vpc-resource-controller"
REFUSED = 422
TIMEOUT_S = 60.0  # ours: an API server applies new policies within seconds, but does not announce it, so the step polls

GIVEN: Object = {POD_ENI: "[{}]"}
MADE: tuple[tuple[str, Object, bool, bool, str], ...] = (
    # name; annotations; whether a container has the resource limit; hostNetwork; expected mark, or "" if the pod must be refused
    ("plain", {}, False, False, "none"),
    ("limits", {}, True, False, "required"),
    ("others", {"team": "blue"}, True, False, "required"),
    ("claims", {MARK: "required"}, False, False, "none"),
    ("hides", {MARK: "none"}, True, False, "required"),
    ("of-host", {MARK: "required"}, True, True, "none"),
    ("names", dict(GIVEN), True, False, ""),
)


def look(api: Api) -> list[str]:
    """Apply the policies, try them, and remove them. Returns: a sentence for each unexpected result. Raises: ClusterError."""
    paths = [_path(policy) for policy in _policies()]
    try:
        for policy in _policies():
            api.create(_path(policy).rpartition("/")[0], policy)
        api.wait(lambda: _unready(api), what="in force", timeout_s=TIMEOUT_S)
        return [*_made(api), *_changed(api, api.acting_as(CONTROLLER))]
    finally:
        for path in paths:
            api.delete(path)
        for name in ("ready", *(name for name, *_ in MADE)):
            _remove(api, name)


def _policies() -> Iterator[Object]:
    for path in sorted(MANIFESTS.glob("*.yaml")):
        yield from (
            document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document["kind"] != "Kustomization"
        )


def _path(policy: Object) -> str:
    kind = policy["kind"].lower()
    return f"{COLLECTION}/{kind.removesuffix('y') + 'ies' if kind.endswith('y') else kind + 's'}/{policy['metadata']['name']}"


def _pod(name: str, annotations: Object, *, limits: bool, of_host: bool = False) -> Object:
    """Return a pod that stays unscheduled, because no scheduler has the name in its spec."""
    pod = objects.lone_pod(name, of_host=of_host)
    pod["metadata"] |= {"annotations": annotations} if annotations else {}
    pod["spec"]["schedulerName"] = "nobody"
    if limits:
        pod["spec"]["containers"][0]["resources"] = {"limits": {POD_ENI: "1"}}
    return pod


def _remove(api: Api, name: str) -> None:
    api.delete(f"{objects.collection('pods')}/{name}", grace_s=0)


def _try(api: Api, name: str, annotations: Object, *, limits: bool = False, of_host: bool = False) -> str:
    """Try to create a pod. Returns: its mark; "-" if it has none; "" if it was refused."""
    _remove(api, name)
    try:
        pod = api.create(objects.collection("pods"), _pod(name, annotations, limits=limits, of_host=of_host))
    except ApiError as error:
        if error.status != REFUSED:
            raise
        return ""
    return str(pod["metadata"].get("annotations", {}).get(MARK, "-"))


def _unready(api: Api) -> str:
    if _try(api, "ready", {}, limits=True) != "required":
        return "pods are not marked"
    return "annotations are not guarded" if _try(api, "ready", GIVEN) else ""


def _made(api: Api) -> Iterator[str]:
    for name, written, limits, of_host, wanted in MADE:
        mark = _try(api, name, written, limits=limits, of_host=of_host)
        if mark != wanted:
            yield f"pod {name} is marked {mark!r}, not {wanted!r}"


def _changed(api: Api, controller: Api) -> Iterator[str]:
    """Change an existing pod as a user and as the controller. Yield a sentence for each change that is unexpectedly refused or let
    through."""
    pod, bindings = f"{objects.collection('pods')}/limits", objects.collection("bindings")

    def patch(who: Api, annotations: Object, part: str = "") -> Callable[[], object]:
        return lambda: who.patch(pod + part, {"metadata": {"annotations": annotations}})

    def bind(annotations: Object, path: str) -> Callable[[], object]:
        target, metadata = {"apiVersion": "v1", "kind": "Node", "name": "nowhere"}, {"name": "limits", "annotations": annotations}
        return lambda: api.create(path, {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target})

    for what, change, is_let in (
        ("another mark", patch(api, {MARK: "none"}), False),
        ("no mark", patch(api, {MARK: None}), False),
        ("another mark by the controller", patch(controller, {MARK: "none"}), False),
        ("another mark by its status", patch(api, {MARK: "none"}, "/status"), False),
        ("an ENI", patch(api, GIVEN), False),
        ("an ENI by its status", patch(api, GIVEN, "/status"), False),
        ("an ENI by its binding", bind(GIVEN, f"{pod}/binding"), False),
        ("another mark by a binding", bind({MARK: "none"}, bindings), False),
        ("an ENI by the controller", patch(controller, GIVEN), True),
        ("no ENI any more", patch(api, {POD_ENI: None}), False),
        ("something else", patch(api, {"team": "blue"}), True),
        ("something else by its status", patch(api, {"team": "red"}, "/status"), True),
        ("something else by its binding", bind({"team": "green"}, f"{pod}/binding"), True),
    ):
        refused = False
        try:
            change()
        except ApiError as error:
            if error.status != REFUSED:
                raise
            refused = True
        if refused == is_let:
            yield f"{what} is {'refused' if refused else 'let through'}"
    with suppress(ApiError):
        final = api.get(pod)["metadata"]["annotations"]
        if (final[MARK], final.get(POD_ENI), final.get("team")) != ("required", GIVEN[POD_ENI], "green"):
            yield f"the pod ends with {final}"
