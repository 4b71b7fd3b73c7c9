"""Identity and facts of this device.

identity  the device's key in a file
token     the device's key on a PKCS#11 token
facts     the device's name, its document, and the facts that variants are matched with
"""
