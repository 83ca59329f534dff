"""Reports that only read: status, audit, explain, path, plan. `ipamctl` and the metrics show them."""
