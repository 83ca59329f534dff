"""Facts about instance types that only one kind of leg needs. A leg is one veth pair of a sandbox (`ipamd/model/legs/`)."""
