"""The parts of reports that are about one kind of leg. A leg is one veth pair of a sandbox (`ipamd/model/legs/`)."""
