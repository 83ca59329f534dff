"""A Kubernetes cluster on lab nodes: control plane, kubelets and kube-proxies are real (tools/cluster.sh builds them), and vpc-ipamd
is installed by its chart."""
