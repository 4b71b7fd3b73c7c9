"""Commands about the identity of a device.

identity  `identity`
check     `check-device`, for the device image
"""
