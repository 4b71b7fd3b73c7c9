"""A step that could not be run here, with the reason; any other exception is a failure."""

from __future__ import annotations


class Skipped(Exception):
    """The machine lacks something that the step needs."""
