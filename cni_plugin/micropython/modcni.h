// The part of modcni.c that main.c uses.
#include <stdbool.h>

extern bool cni_has_printed; // whether something was written to standard output
