"""The lines and columns of `ipamctl` that are about one kind of leg."""
