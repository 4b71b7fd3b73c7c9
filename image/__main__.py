"""The commands of the Makefile's targets for images: `python -m image COMMAND`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from image import build, machine
from image.errors import ImageError

#: commands with options of their own -> the module whose `main` takes them
OTHERS = {
    "run": ("image.run", "boot an image in QEMU (make image-run)"),
    "flash": ("image.flash", "write an image to a disk (make flash)"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Return the exit status."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words and words[0] in OTHERS:
        status: int = importlib.import_module(OTHERS[words[0]][0]).main(words[1:])
        return status
    parser = argparse.ArgumentParser(prog="python -m image", description="build and try images of a device")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("build", help="build an image into dist/ (make image)")
    one.add_argument("--profile", choices=build.PROFILES, default="base")
    one.add_argument("--arch", choices=build.ARCHES, default="x86-64", help="of the device; another one is emulated")
    one.add_argument("--out", type=Path, default=Path("dist"))
    one.add_argument("--fresh", action="store_true", help="fetch Debian's packages anew")
    commands.add_parser("check", help="check that this machine can build an image")
    commands.add_parser(
        "lock", help="accept the Debian packages of the last build into image/packages.txt and tools.txt"
    )
    for name, (_, text) in OTHERS.items():
        commands.add_parser(name, help=text)
    options = parser.parse_args(words)
    try:
        if options.command == "build":
            files = build.build(build.wish(options.profile, options.out, options.fresh, options.arch))
            print(*(f"{path}  {path.stat().st_size / 1e6:.1f} MB" for path in files), sep="\n")
        elif options.command == "lock":
            print(*build.accept(), sep="\n")
        else:
            machine.check(machine.work_folder())
    except ImageError as error:
        print(f"image: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
