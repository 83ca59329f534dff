"""Compare our daemon, amazon-vpc-cni-k8s and the reference plugin `ptp` on one machine (docs/comparison.md, Measured)."""
