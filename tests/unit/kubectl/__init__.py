"""The kubectl plugin, against a made API server over HTTP and a made kubectl."""
