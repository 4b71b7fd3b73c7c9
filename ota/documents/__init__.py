"""Documents that are signed, and what they mean: bytes in, values out; nothing here touches disk, network, or clock.

- `names`: the names and paths that a document may contain.
- `manifest`: a release: the files of its models, and its variants.
- `rollout`: which devices of a fleet get which release, and when.
- `floor`: the lowest releases that a family allows.
- `device`: what the publisher knows of a device: fleet, ring, labels, key.
"""
