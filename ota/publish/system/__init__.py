"""Publishes versions of the devices' system: images that `make image` builds.

image    reads the three files of an image, and refuses files that do not belong together
publish  adds the role `system` to a repository, and publishes a version
"""
