"""The annotations of a pod that decide how its sandbox is connected, and how a runtime hands them over."""

from __future__ import annotations

POD_ENI = "vpc.amazonaws.com/pod-eni"
"""The annotation by which the control plane names the ENI of a pod that has one of its own, and the resource that a container of such
a pod limits. Source: amazon-vpc-resource-controller-k8s pkg/config/type.go."""

MARK = "vpc-ipamd/pod-eni"
"""The annotation by which our admission policy says whether a pod wants an ENI of its own (manifests/pod-eni/)."""

CONFIG_SOURCE, FROM_API = "kubernetes.io/config.source", "api"
"""The annotation in which kubelet writes where it got a pod from, and its usual value. A static pod comes from a file or a URL, so no
admission policy sees it. Source: kubernetes
pkg/kubelet/types/pod_update.go."""

SNAT = "vpc-ipamd/snat"
"""The annotation by which a pod chooses how its connections to outside the VPC are translated: a value of `PodSnat`."""

ADDRESS = "vpc-ipamd/address"
"""The annotation by which a pod asks for an address: an IPv4 address, or `same` for the one that it had last on this node."""

ADDRESS_KEPT = "vpc-ipamd/address-keep-seconds"
"""The annotation by which a pod says how long that address is kept for it after its end; 0: not at all."""

POOL = "vpc-ipamd/pool"
"""The annotation by which a pod chooses the pool of its address: a name in the network file."""

NIC_CONFIG, MULTI_NIC = "k8s.amazonaws.com/nicConfig", "multi-nic-attachment"
"""The annotation by which a pod asks for an interface of each network card, and the only value that does, in exactly this case.
Source: amazon-vpc-cni-k8s cmd/routed-eni-cni-plugin/cni.go, add."""

ANNOTATIONS_READ = (POD_ENI, MARK, CONFIG_SOURCE, SNAT, ADDRESS, ADDRESS_KEPT, POOL, NIC_CONFIG)

ANNOTATION_MAX = 16 * 1024
"""Characters of `POD_ENI`. Ours: the controller's has 300."""

POD_ANNOTATIONS = "io.kubernetes.cri.pod-annotations"
"""Capability under which containerd (from 1.5) and CRI-O (from 1.29) hand over a pod's annotations, those of its first moment.
Source: containerd internal/cri/server/sandbox_run.go, cniNamespaceOpts; github.com/cri-o/cri-o pull request 7342."""
