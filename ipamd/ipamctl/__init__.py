"""`ipamctl`: inspect the daemon. Tables for people, `-o json` for programs; grpc is imported only to ask the daemon."""
