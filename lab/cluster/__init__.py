"""A Kubernetes cluster on lab nodes: real control plane, kubelets and kube-proxies (tools/cluster.sh), vpc-ipamd by its chart."""
