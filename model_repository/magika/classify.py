#!/usr/bin/env python3
"""Says what kind of file each argument is: `python model_repository/magika/classify.py FILE ...`.

Standard library only. The features are those of Magika's own client: the first and the last 1,024 bytes without
surrounding white space, padded with 256.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

HALF, PADDING, BLOCK = 1024, 256, 4096


def features(data: bytes) -> list[int]:
    """The model's 2,048 numbers for a file's content."""
    first, last = list(data[:BLOCK].lstrip()[:HALF]), list(data[-BLOCK:].rstrip()[-HALF:])
    padding = [PADDING] * HALF
    return (first + padding)[:HALF] + (padding + last)[-HALF:]


def classify(server: str, data: bytes, classes: int = 1) -> list[tuple[str, float]]:
    """The likeliest labels and their scores.

    Raises:
        OSError: the server cannot be reached, or refuses.
    """
    request = {
        "inputs": [{"name": "bytes", "datatype": "INT32", "shape": [1, 2 * HALF], "data": features(data)}],
        "outputs": [{"name": "target_label", "parameters": {"classification": classes}}],
    }
    body = json.dumps(request).encode()
    with urllib.request.urlopen(f"http://{server}/v2/models/magika/infer", body, timeout=10) as reply:
        answers = json.load(reply)["outputs"][0]["data"]
    return [(label, float(score)) for score, _, label in (answer.split(":", 2) for answer in answers)]


def main(given: Sequence[str] | None = None) -> None:
    """One line per file.

    Raises:
        SystemExit: with a text for people.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--server", default="127.0.0.1:8000")
    arguments = parser.parse_args(given)
    if not re.fullmatch(r"([^][/@:]+|\[[^][/@]+\])(:[0-9]+)?", arguments.server):
        parser.error(f"--server: found '{arguments.server}', expected <host>:<port>")
    for path in arguments.files:
        try:
            data = path.read_bytes()
        except OSError as error:
            sys.exit(f"classify: cannot read '{path}': {error.strerror}")
        try:
            answers = classify(arguments.server, data)
        except urllib.error.HTTPError as error:
            with error:
                said = error.read().decode(errors="replace").strip()
            sys.exit(f"classify: the server at {arguments.server} refuses: {said}; has it the model? `make models`")
        except http.client.HTTPException:
            sys.exit(f"classify: what answers at {arguments.server} speaks no HTTP/1.1: is it the port of gRPC?")
        except OSError as error:
            reason = getattr(error, "reason", error)
            sys.exit(f"classify: no server answers at {arguments.server} ({reason}); `make serve` starts one")
        for label, score in answers:
            print(f"{path}: {label} ({score:.3f})")


if __name__ == "__main__":
    main()
