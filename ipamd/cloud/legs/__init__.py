"""Facts about instance types that only one kind of leg needs."""
