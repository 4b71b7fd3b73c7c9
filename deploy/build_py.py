"""Command `build_py` of setuptools that begins with an empty folder, so that a wheel has no modules of older versions.

pip builds in the checkout, and keeps `build/lib` there.
"""

from __future__ import annotations

import shutil

from setuptools.command.build_py import build_py


class CleanBuild(build_py):  # type: ignore[misc]  # setuptools has no types
    """`build_py`, which removes the files of earlier builds."""

    def run(self) -> None:
        """Build the package."""
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()

    def get_source_files(self) -> list[str]:
        """Return the files of a source distribution, of which this is one."""
        return [*super().get_source_files(), "deploy/build_py.py"]
