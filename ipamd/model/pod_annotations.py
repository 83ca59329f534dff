"""The annotations of a pod that determine how its sandbox is connected, and how a runtime hands them over."""

from __future__ import annotations

POD_ENI = "vpc.amazonaws.com/pod-eni"
"""The annotation by which the control plane names the branch ENI of a pod that has security groups of its own. The extended resource
in the limits of such a pod's container has this name too. Source: amazon-vpc-resource-controller-k8s pkg/config/type.go."""

MARK = "vpc-ipamd/pod-eni"
"""The annotation by which our admission policy marks whether a pod needs an ENI of its own (manifests/pod-eni/)."""

CONFIG_SOURCE, FROM_API = "kubernetes.io/config.source", "api"
"""The annotation in which kubelet writes the origin of a pod, and its usual value, which says that the pod came from the API. A static
pod comes from a file or a URL, so no admission policy sees it. Source: kubernetes pkg/kubelet/types/pod_update.go."""

SNAT = "vpc-ipamd/snat"
"""The annotation by which a pod chooses how its connections to outside the VPC are translated: a value of `PodSnat`."""

ADDRESS = "vpc-ipamd/address"
"""The annotation by which a pod asks for an address: an IPv4 address, or `same` for the address that it had last on this node."""

ADDRESS_KEPT = "vpc-ipamd/address-keep-seconds"
"""The annotation with the number of seconds for which a pod's address is kept for the pod after the pod's end; 0: it is not kept."""

POOL = "vpc-ipamd/pool"
"""The annotation by which a pod chooses the pool of its address: a name in the network file."""

NIC_CONFIG, MULTI_NIC = "k8s.amazonaws.com/nicConfig", "multi-nic-attachment"
"""The annotation by which a pod asks for an interface on each network card, and the only value that has this effect (case-sensitive).
Source: amazon-vpc-cni-k8s cmd/routed-eni-cni-plugin/cni.go, add."""

CARDS = "vpc-ipamd/network-cards"
"""The annotation by which a pod names the network cards on which it asks for interfaces: their indexes, comma separated."""

ANNOTATIONS_READ = (POD_ENI, MARK, CONFIG_SOURCE, SNAT, ADDRESS, ADDRESS_KEPT, POOL, NIC_CONFIG, CARDS)
"""All annotations that the daemon reads."""

ANNOTATION_MAX = 16 * 1024
"""The most characters of the annotation `POD_ENI` that are read. Ours: this is ample, because the controller writes about 300."""

POD_ANNOTATIONS = "io.kubernetes.cri.pod-annotations"
"""The CNI capability by which containerd (from 1.5) and CRI-O (from 1.29) hand over a pod's annotations as they were when the
sandbox was begun.
Source: containerd internal/cri/server/sandbox_run.go, cniNamespaceOpts; github.com/cri-o/cri-o pull request 7342."""
