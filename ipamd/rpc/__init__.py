"""The wire: decode envelopes, call services with typed requests, encode results and errors. ADD and DEL are words of this package."""
