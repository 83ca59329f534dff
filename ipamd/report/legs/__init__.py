"""The parts of reports that are about one kind of leg."""
