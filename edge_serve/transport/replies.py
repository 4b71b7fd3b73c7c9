"""Bodies of error replies, made here and nowhere else."""

from __future__ import annotations

import json

import orjson


def error_body(text: str) -> bytes:
    """`{"error":"<text>"}`, the body of every reply that is not a success (protocol extension of Triton)."""
    try:
        return orjson.dumps({"error": text})
    except TypeError:  # lone surrogates: a text that quotes a client's bytes
        return json.dumps({"error": text}, separators=(",", ":")).encode()
