// MicroPython's hardware layer: this port has nothing to say here. Time, files and sockets are in modcni.c.
