"""Tests of the device image on an emulated machine, for `make test-image` only.

esp  files on the boot partition of a disk, by mtools
"""
