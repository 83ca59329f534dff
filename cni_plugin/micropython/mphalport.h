// MicroPython's hardware layer. This port needs no declarations here, because time, files and sockets are in modcni.c.
