"""Programs that run on the device as `/usr/lib/edge-device/edge-device COMMAND`, with Python's standard library only.

The image has this folder in /usr/lib/edge-device/image/device. Files of `initrd/` are shell scripts: the initrd has no
Python; there they are in /usr/lib/edge-device.

    __main__    runs `cli`
    cli         the commands
    provision/  applies edge-serve.toml
    data/       looks at the data partition
    console/    shows the state on the screen and the serial line
    report      faults, and the status file
    facts       name, addresses, key, version, and slot
    files       writes that survive a power cut

Updates of the system, and what happens if one is bad (docs/image_updates.md; read `decide` first):

    decide      the decisions about slots, without side effects
    slots       boot entries, and the record of good and bad versions
    health      the health gate of a boot
    slot        confirms the system that runs
    scrub       reads the whole root
    install     writes an update into the free slot
    system      the root side of updates, behind a socket
    server      the server's status document
    restart     restarts the machine
"""
