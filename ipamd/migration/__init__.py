"""From amazon-vpc-cni-k8s to us and back: its files, its daemon, its plugin's calls. Removable: only the composition imports it."""
