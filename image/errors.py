"""The error of this room."""

from __future__ import annotations


class ImageError(Exception):
    """The image cannot be built, written, or run; the message says what was found and what to do."""
