"""Names that mark ENIs as made for a node, as amazon-vpc-cni-k8s writes them: its tools and IAM conditions hold for ours too.

Source: amazon-vpc-cni-k8s pkg/awsutils/awsutils.go.
"""

from __future__ import annotations

INSTANCE_TAG = "node.k8s.amazonaws.com/instance_id"
NO_MANAGE_TAG = "node.k8s.amazonaws.com/no_manage"
CREATED_AT_TAG = "node.k8s.amazonaws.com/createdAt"
CLUSTER_TAG = "cluster.k8s.amazonaws.com/name"
DESCRIPTION_PREFIX = "aws-K8S-"
