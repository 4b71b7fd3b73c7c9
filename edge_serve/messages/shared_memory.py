"""Shared memory that clients register: what is registered, and which part of it a request means."""

from __future__ import annotations

from typing import Protocol

from edge_serve.records import frozen


@frozen
class RegionStatus:
    """A registered region of system shared memory, as its client described it."""

    name: str
    key: str
    offset: int
    byte_size: int


@frozen
class CudaRegionStatus:
    """A registered region of a GPU's memory, as its client described it."""

    name: str
    device_id: int
    byte_size: int


@frozen
class Place:
    """Where in a client's shared memory an input lies, or an output goes.

    Attributes:
        region: a `Region` of workers/memory/, which stays open while this refers to it; in a codec process its name.
        offset: in the region's file, or in the memory of a GPU; with a name, in the region.
        label: the output as its client named it, for error texts.
    """

    region: object
    offset: int
    size: int
    label: str = ""


class Regions(Protocol):
    """The shared memory that clients have registered (workers/memory/regions.py)."""

    def find(self, name: str, offset: int, size: int, label: str = "") -> Place:
        """Return the place of a part of region `name`.

        Raises:
            NotFound: there is no such region. InvalidArgument: the part reaches beyond it.
        """


class NamedRegions:
    """Stands for the regions where they are unknown (a codec process): `find` answers with the name, and finds
    everything."""

    def find(self, name: str, offset: int, size: int, label: str = "") -> Place:
        """See `Regions.find`; never raises."""
        return Place(name, offset, size, label)
