"""Tests of the device image on an emulated machine, for `make test-image` and its sisters only.

busy            clients that are busy while a device restarts
cable           a network cable to the device, over which all its ports can be tried
esp             files on the boot partition of a disk, by mtools
forged          a system that someone else has signed
needs           what this host needs for make test-image
moments         moments of a running disk: what a power cut would leave
servers         a time server and a proxy on this host
site            the owner's laptop, the publisher, and nginx with releases, on this host
test_boot       the time to health ready: with and without a network, and a clock, and our units
test_data       the data partition: damaged, full, foreign, newer, missing; a disk too small; factory reset
test_exposure   the rights of our units, and open ports
test_network    network and time of edge-serve.toml, in effect
test_ota_update a fleet updates the system of a booted device
test_powercuts  power cuts at random moments of a system update
test_settings   edge-serve.toml: right, wrong, and corrected
test_sizes      the sizes of the image, its root, and its initrd
test_smoke      the shipped image byte for byte, driven from outside only
test_tampering  a changed root is refused
test_updates    updates by the root side: good ones, bad ones, and damaged disks
"""
