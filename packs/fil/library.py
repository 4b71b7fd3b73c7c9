"""Calls of Treelite's C library, with its errors as exceptions. Start at `load_treelite`.

The package `treelite` is not imported: its module needs SciPy (100 MB), and builds its settings anew for every call
(docs/adr/0035-trees.md has the figures). The C interface is the one that it uses itself, of Treelite 4.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from edge_serve.backends import host
from edge_serve.errors import Unavailable
from edge_serve.messages.tensors import Array

INSTALL = "edge-serve pack install fil"
#: threads of libgomp that wait for the next call sleep: cores are needed for the server and its clients
_WAITING = ("OMP_WAIT_POLICY", "passive")
#: `[12:00:00] /project/src/file.cc:12: ` before, and a stack trace behind, the text of an error
_PLACE = re.compile(r"\A\[[\d:]+\] \S+:\d+: ")
_TRACE = re.compile(r"\n+Stack trace:.*", re.DOTALL)
_CALLBACK = ctypes.CFUNCTYPE(None, c_char_p)

_MODEL = c_void_p
#: None stands for a `BufferFrame` by value
_SIGNATURES: dict[str, list[Any]] = {
    "TreeliteRegisterLogCallback": [_CALLBACK],
    "TreeliteRegisterWarningCallback": [_CALLBACK],
    "TreeliteLoadXGBoostModelLegacyBinary": [c_char_p, c_char_p, POINTER(_MODEL)],
    "TreeliteLoadXGBoostModelJSON": [c_char_p, c_char_p, POINTER(_MODEL)],
    "TreeliteLoadXGBoostModelUBJSON": [c_char_p, c_char_p, POINTER(_MODEL)],
    "TreeliteLoadLightGBMModel": [c_char_p, c_char_p, POINTER(_MODEL)],
    "TreeliteLoadLightGBMModelFromString": [c_char_p, c_char_p, POINTER(_MODEL)],
    "TreeliteDeserializeModelFromFile": [c_char_p, POINTER(_MODEL)],
    "TreeliteFreeModel": [_MODEL],
    "TreeliteQueryNumTree": [_MODEL, POINTER(c_size_t)],
    "TreeliteQueryNumFeature": [_MODEL, POINTER(c_size_t)],
    "TreeliteGetInputType": [_MODEL, POINTER(c_char_p)],
    "TreeliteGetOutputType": [_MODEL, POINTER(c_char_p)],
    "TreeliteGetHeaderField": [_MODEL, c_char_p, c_void_p],
    "TreeliteGetTreeField": [_MODEL, c_uint64, c_char_p, c_void_p],
    "TreeliteSetHeaderField": [_MODEL, c_char_p, None],
    "TreeliteSetTreeField": [_MODEL, c_uint64, c_char_p, None],
    "TreeliteGTILParseConfig": [c_char_p, POINTER(c_void_p)],
    "TreeliteGTILDeleteConfig": [c_void_p],
    "TreeliteGTILPredict": [_MODEL, c_void_p, c_char_p, c_uint64, c_void_p, c_void_p],
}


class TreeliteError(Exception):
    """The library refused. The text is its own, without the place in its source and the stack."""


class BufferFrame(ctypes.Structure):
    """A field of a model, in the library's memory."""

    _fields_ = (("buffer", c_void_p), ("format", c_char_p), ("itemsize", c_size_t), ("count", c_size_t))

    @staticmethod
    def of(array: Array) -> BufferFrame:
        """Return a frame over an array of float32 or float64, which must live as long."""
        code = b"=f" if array.dtype.itemsize == 4 else b"=d"
        return BufferFrame(array.ctypes.data, code, array.itemsize, array.size)

    def array(self) -> Array:
        """Return a copy. Text comes as an array of single bytes."""
        code = (self.format or b"=B").decode().lstrip("=").replace("c", "S1").replace("l", "i4").replace("L", "u4")
        dtype = np.dtype(code.replace("q", "i8").replace("Q", "u8"))
        if not self.buffer or not self.count:
            return np.empty(0, dtype)
        return np.frombuffer(ctypes.string_at(self.buffer, self.count * self.itemsize), dtype)


class Treelite:
    """The library, loaded once for a process. Calls release the interpreter's lock, and may be made by any thread."""

    def __init__(self, path: Path) -> None:
        os.environ.setdefault(*_WAITING)  # libgomp reads it when it is loaded
        self._library = ctypes.CDLL(str(path))
        self._library.TreeliteGetLastError.restype = c_char_p
        self.calls: dict[str, Callable[..., int]] = {}
        for name, arguments in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.argtypes, function.restype = [one or BufferFrame for one in arguments], c_int
            self.calls[name] = function
        #: without these two the library prints
        self._callbacks = [_CALLBACK(_quiet), _CALLBACK(_warn)]
        for name, callback in zip(("Log", "Warning"), self._callbacks, strict=True):
            self.call(f"TreeliteRegister{name}Callback", callback)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function. Raises TreeliteError."""
        if self.calls[name](*arguments) != 0:
            raise TreeliteError(self.last_error())

    @property
    def most_threads(self) -> int:
        """Return how many threads a call may have: OMP_NUM_THREADS, or the processors of this process."""
        return int(self._library.omp_get_max_threads())

    def last_error(self) -> str:
        """Return why the last call of this thread failed."""
        text = (self._library.TreeliteGetLastError() or b"").decode(errors="replace")
        return _TRACE.sub("", _PLACE.sub("", text)).strip()

    def configuration(self, threads: int, raw: bool = False) -> c_void_p:
        """Return how to predict, for `TreeliteGTILPredict`. It lives as long as the process: there are few."""
        return self._configuration(threads, raw)

    @cache  # noqa: B019  the library is never unloaded
    def _configuration(self, threads: int, raw: bool) -> c_void_p:
        made = c_void_p()
        text = f'{{"predict_type": "{"raw" if raw else "default"}", "nthread": {threads}}}'
        self.call("TreeliteGTILParseConfig", text.encode(), byref(made))
        return made


_loaded: Treelite | None = None
_lock = threading.Lock()


def load_treelite() -> Treelite:
    """Return the library.

    Raises:
        Unavailable: it is not installed, or does not load.
    """
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = _load()
        return _loaded


def _load() -> Treelite:
    found = importlib.util.find_spec("treelite")
    places = [
        Path(place) / "lib/libtreelite.so" for place in (found.submodule_search_locations if found else None) or ()
    ]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise Unavailable(f"backend 'fil' needs the package 'treelite', which {sys.executable} lacks: {INSTALL}")
    try:
        return Treelite(path)
    except (OSError, AttributeError) as error:  # another processor, an old libstdc++, or another Treelite
        raise Unavailable(f"backend 'fil' cannot use '{path}': {error}; expected Treelite 4: {INSTALL}") from error


def _quiet(message: bytes) -> None:
    """Discard progress messages."""


def _warn(message: bytes) -> None:
    text = " ".join(_PLACE.sub("", message.decode(errors="replace")).split())
    host.log("WARNING", f"treelite: {text}")
