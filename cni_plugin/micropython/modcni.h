// What main.c must know of modcni.c.
#include <stdbool.h>

extern bool cni_has_printed; // something was written to standard output
