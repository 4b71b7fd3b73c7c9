"""Tests of the package on booted machines, for `make test-system`, `make test-vm`, and `make test-powercut` only.

trees       a Debian system in a folder, from mmdebstrap, cached
agent       a program on that system, which runs commands and writes files for the tests
machine     the interface of a booted system
nspawn, vm  boot a system: in a container, or in QEMU
service     the service on that machine: its ports, its state in systemd, its models
test_*      the tests, the same for both kinds of machines
"""
