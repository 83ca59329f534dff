"""Our daemon, amazon-vpc-cni-k8s and the reference plugin `ptp` side by side on one machine (docs/comparison.md, Measured)."""
