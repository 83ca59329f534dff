"""The way from amazon-vpc-cni-k8s to us and back: its files, daemon and plugin calls. Removable: only the composition imports it."""
