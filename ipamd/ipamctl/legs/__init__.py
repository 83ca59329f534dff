"""The lines and columns of `ipamctl` that are about one kind of leg. A leg is one veth pair of a sandbox (`ipamd/model/legs/`)."""
