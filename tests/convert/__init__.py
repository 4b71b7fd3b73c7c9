"""`edge-serve convert`."""
