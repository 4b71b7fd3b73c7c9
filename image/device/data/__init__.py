"""The data partition: docs/image_data.md.

The initrd makes, repairs, and mounts it (`initrd/edge-state`, a shell script).

    place      says whether /var is on it, or in memory
    space      looks at its space while the system runs
    last_stop  says how the device stopped the last time
"""
