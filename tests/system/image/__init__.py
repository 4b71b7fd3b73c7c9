"""Tests of the device image on an emulated machine, for `make test-image` only.

cable          a network cable to the device, over which all its ports can be tried
esp            files on the boot partition of a disk, by mtools
site           the owner's laptop, the publisher, and nginx with releases, on this host
test_boot      the time to health ready: with and without a network, and a clock, and our units
test_exposure  the rights of our units, and open ports
test_smoke     the shipped image byte for byte, driven from outside only
"""
