"""Builds packages for releases of Debian and Ubuntu into dist/: `make deb`."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy.debian.pack import build_pack, packs
from deploy.debian.package import build
from deploy.debian.releases import GPU_RELEASE, MACHINES, RELEASES, this_release
from deploy.program import this_machine, why
from deploy.version import VersionError
from edge_serve.errors import InvalidArgument


def main(argv: Sequence[str] | None = None) -> int:
    """Build the packages. Return the exit status."""
    here = this_release()
    arch = next((name for name, machine in MACHINES.items() if machine == this_machine().machine), None)
    parser = argparse.ArgumentParser(prog="python -m deploy.debian", description="build edge-serve_*.deb")
    parser.add_argument("--release", action="append", choices=RELEASES, help=f"may be repeated; default: {here}")
    parser.add_argument("--arch", choices=MACHINES, default=arch)
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="with CUDA 12 and onnxruntime-gpu, 3 GB (trixie, amd64); --pack pytorch: CUDA 13",
    )
    parser.add_argument("--pack", choices=packs(), help="build edge-serve-backend-<pack> in place of edge-serve")
    parser.add_argument("--out", type=Path, default=Path("dist"))
    options = parser.parse_args(argv)
    releases = options.release or ([here] if here else [])
    if not releases or options.arch is None:
        known = f"--release {', '.join(RELEASES)}; --arch {', '.join(MACHINES)}"
        print(f"deb: no package is made for this machine; name a release and a processor: {known}", file=sys.stderr)
        return 2
    if shutil.which("dpkg-deb") is None:
        print("deb: dpkg-deb is not installed; it builds the package: apt-get install dpkg", file=sys.stderr)
        return 1
    if options.gpu and not options.pack and (releases, options.arch) != ([GPU_RELEASE], "amd64"):
        print(f"deb: --gpu is for --release {GPU_RELEASE} --arch amd64 only", file=sys.stderr)
        return 2
    for release in releases:
        try:
            if options.pack:
                print(build_pack(options.pack, release, options.arch, options.out, options.gpu))
            else:
                print(build(release, options.arch, options.out, options.gpu))
        except VersionError as error:
            print(f"deb: {error}", file=sys.stderr)
            return 1
        except InvalidArgument as error:  # the pack has no wheels for it
            print(f"deb: {release} {options.arch}: {error.message}", file=sys.stderr)
            return 1
        except (subprocess.CalledProcessError, OSError) as error:
            print(f"deb: {release}: {why(error, options.out)}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
