"""Asks the CUDA driver for its devices and prints one JSON document: `python -I -S probe.py`.

A process of its own, because a driver that is broken may end the process that calls it, and because the front end
stays without libcuda. No context is made: `cuInit` and questions about devices take none (CUDA CudaDriver API, Device
Management). Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import sys
import uuid
from typing import Any

LIBRARY = "libcuda.so.1"

#: CUdevice_attribute (cuda.h)
_INTEGRATED, _MAJOR, _MINOR = 18, 75, 76
_NAME_BYTES = 256


class DriverError(Exception):
    """A call of the driver failed.

    Attributes:
        code: CUresult; 0 = the library does not load.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class CudaDriver:
    """The calls of libcuda that the probe needs.

    Raises:
        DriverError: the library does not load, or a call fails.
    """

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise DriverError(0, str(error)) from error

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a CUresult."""
        try:
            code = getattr(self._library, name)(*arguments)
        except AttributeError:
            raise DriverError(0, f"{LIBRARY} has no {name}") from None
        if code:
            text = ctypes.c_char_p()
            known = self._library.cuGetErrorName(code, ctypes.byref(text)) == 0 and text.value
            raise DriverError(code, f"{name} failed with {known.decode() if known else f'CUDA error {code}'}")

    def integer(self, name: str, *arguments: Any) -> int:
        """Return the number that a function writes to its first argument."""
        value = ctypes.c_int()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value


def read_devices(driver: CudaDriver) -> dict[str, Any]:
    """Return the document.

    Raises:
        DriverError: the driver does not work.
    """
    driver.call("cuInit", 0)
    version = driver.integer("cuDriverGetVersion")
    count = driver.integer("cuDeviceGetCount")
    cuda = [version // 1000, version % 1000 // 10]
    return {"cuda": cuda, "devices": [_read_device(driver, number) for number in range(count)]}


def _read_device(driver: CudaDriver, number: int) -> dict[str, Any]:
    device = driver.integer("cuDeviceGet", number)
    name = ctypes.create_string_buffer(_NAME_BYTES)
    identity, total = (ctypes.c_ubyte * 16)(), ctypes.c_size_t()
    driver.call("cuDeviceGetName", name, _NAME_BYTES, device)
    driver.call("cuDeviceGetUuid", identity, device)
    driver.call("cuDeviceTotalMem_v2", ctypes.byref(total), device)
    major, minor, integrated = (
        driver.integer("cuDeviceGetAttribute", attribute, device) for attribute in (_MAJOR, _MINOR, _INTEGRATED)
    )
    return {
        "id": number,
        "name": name.value.decode(errors="replace"),
        "uuid": f"GPU-{uuid.UUID(bytes=bytes(identity))}",
        "capability": [major, minor],
        "memory_bytes": total.value,
        "integrated": bool(integrated),
    }


def main() -> int:
    """Print the document; exit status 0 also when the driver refuses, which the document says."""
    try:
        document = read_devices(CudaDriver())
    except DriverError as error:
        document = {"error": str(error), "code": error.code}
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
