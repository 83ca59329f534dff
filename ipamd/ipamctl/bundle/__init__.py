"""`ipamctl bundle`: one archive of a node's state for support, without secrets (docs/ipamctl.md, Bundle)."""
