"""Tests of the package on booted machines, for `make test-system`, `make test-vm`, `make test-powercut`, and
`make test-image` only.

trees       a Debian system in a folder, from mmdebstrap, cached
agent       a program on that system, which runs commands and writes files for the tests
machine     the interface of a booted system
nspawn, vm  boot a system: in a container, or in QEMU
disk        boots the device image in QEMU, with UEFI firmware, for `make test-image`
image/      tests of the device image only
service     the service on that machine: its ports, its state in systemd, its models
test_*      the tests, the same for all kinds of machines; those that install the package need a container or vm
"""
