"""Prints the files that a start of the server reads, one on a line, as paths below the root of the image.

mkosi.postinst.chroot runs it in the root that is almost finished, with the interpreter of the package, and
edge-readahead.service of the initrd reads these files ahead. A file too few or too many costs a little time, no more.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from edge_serve.backends.privacy import private

#: provisioning, the front end, and one worker for each kind of the demo models
_MODULES = (
    "image.device.cli",
    "image.device.provision.flow",
    "edge_serve.cli",
    "edge_serve.first_workers",
    "edge_serve.server",
    "edge_serve.transport.grpc_service.server",
    "edge_serve.workers.child.main",
    "edge_serve.backends.python.backend",
    "edge_serve.backends.python_path.triton_python_backend_utils",
    "edge_serve.backends.onnxruntime.backend",
    "onnxruntime",
)
#: of python3-systemd, which the image has and few other machines
_OF_SYSTEMD = ("systemd.daemon", "systemd.journal")
#: of its 24 MB a start reads two
_HARDLY_READ = "libscipy_openblas"


def main() -> None:
    os.environ.update(private(os.environ))
    for name in _MODULES + (_OF_SYSTEMD if importlib.util.find_spec(_OF_SYSTEMD[0]) else ()):
        importlib.import_module(name)
    files = {_read(module) for name, module in sys.modules.items() if name != "__main__"}
    with open("/proc/self/maps") as maps:
        files |= {Path(line[line.index("/") :].rstrip("\n")) for line in maps if "/" in line}
    for path in sorted({file.resolve() for file in files if file and file.is_file()}):
        if _HARDLY_READ not in path.name:
            print(path.relative_to("/"))


def _read(module: ModuleType) -> Path | None:
    """Return the file that an import of the module reads: its byte code, if there is any."""
    names = (getattr(module, name, None) for name in ("__cached__", "__file__"))
    return next((path for path in map(Path, filter(None, names)) if path.is_file()), None)


if __name__ == "__main__":
    main()
