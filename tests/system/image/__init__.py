"""Tests of the device image on an emulated machine, for `make test-image` only.

esp         files on the boot partition of a disk, by mtools
site        the owner's laptop, the publisher, and nginx with releases, on this host
test_smoke  the shipped image byte for byte, driven from outside only
"""
