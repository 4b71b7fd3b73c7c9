"""Programs that run on the device as `/usr/lib/edge-device/edge-device COMMAND`, with Python's standard library only.

The image has this folder in /usr/lib/edge-device/image/device. Files of `initrd/` are shell scripts: the initrd has no
Python; there they are in /usr/lib/edge-device.
"""
