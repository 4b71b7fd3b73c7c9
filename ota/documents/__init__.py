"""The signed documents: bytes in, values out. Nothing here touches disk, network, or clock.

names     names and paths that a document may contain
manifest  a release: the files of its models, and its variants
system    an image of the device's system: root, verity, and kernel
rollout   which devices of a fleet get which release, and when
floor     the lowest releases that a family allows
device    a device: fleet, ring, labels, key
report    the report of a device
targets   reads a document by its target path
"""
