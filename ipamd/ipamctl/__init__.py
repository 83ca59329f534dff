"""`ipamctl`: inspect the daemon. It prints tables for people and `-o json` for programs. Only calls to the daemon import grpc."""
