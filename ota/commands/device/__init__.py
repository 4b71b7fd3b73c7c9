"""Commands about the identity of a device.

identity  `identity`
check     `run-check-device`, for the device image
"""
