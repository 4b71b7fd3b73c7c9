"""The package on booted machines: `make test-system`, `make test-vm`, `make test-powercut`; nothing runs otherwise.

trees       a Debian system in a folder, from mmdebstrap, cached
agent       what such a system has for us: a program that runs commands and takes files
machine     a booted system, as the tests see it
nspawn, vm  how one is booted: in a container, or in QEMU
service     the service on such a machine: its doors, its state in systemd, its models
test_*      the tests, the same for both kinds of machines
"""
