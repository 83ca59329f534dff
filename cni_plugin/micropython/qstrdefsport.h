// Interned strings of this port. The list is empty, because the build finds all of them in the sources.
