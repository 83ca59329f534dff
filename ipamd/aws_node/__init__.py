"""What amazon-vpc-cni-k8s has on the node's disk, and whether its daemon runs: the adapter of the port `AwsNode`."""
