"""The device image: built with mkosi, and the programs that run on the device beside the server.

The building machine runs the files of this folder, as `python -m image COMMAND`. The device has `device/`, which uses
Python's standard library only. Neither imports `edge_serve` or `ota`: they call the programs `edge-serve` and
`edge-ota`. The building part imports `deploy`, which makes the package that the image contains.

Start with `build`. The image itself is described by mkosi's files in `mkosi/`, which `docs/image.md` explains.

    __main__     the commands
    build        builds an image and writes dist/
    machine      checks the building machine
    mkosi_tool   gets mkosi, and runs it
    stage        the folder that mkosi reads
    packages     compares Debian's packages with packages.txt
    artifacts    update files, and their sums
    bill         the bill of materials
    run          boots the newest image in QEMU
    qemu         QEMU's command line for a device
    flash        writes an image to a disk, and reads it back
    disks        the disks of this machine, and which of them may be overwritten
    partitions   the partition table of an image
    errors       the error of this room
    device/      programs of the device
"""
