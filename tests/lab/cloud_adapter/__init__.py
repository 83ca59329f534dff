"""The EC2 and metadata adapters against the lab servers, over real HTTP on loopback."""
