"""The kind of a file that is no model, from its first bytes: the kinds that every backend knows.

Worker's side: the standard library only.
"""

from __future__ import annotations

import re
from pathlib import Path

COPY_AGAIN = "copy or export it again, and compare its size with the original's"
#: a kind, and the fix
WEB_PAGE = ("a web page, not the file itself", 'download the file itself (its "raw" link)')
#: bytes of a file that tell its kind
_HEAD_BYTES = 512

#: a pattern of the first bytes, the kind of the file, and the fix
FileKinds = tuple[tuple[bytes, str, str], ...]
_NO_MODEL: FileKinds = (
    (rb"version https://git-lfs", "a Git LFS pointer, not the file itself", "git lfs pull"),
    (rb"(?:\.\./)*\.?/?(?:\.git/)?annex/objects", "a git-annex pointer, not the file itself", "git annex get ."),
    (rb"\s*<(?:!doctype|html|head)", *WEB_PAGE),
    (rb"\x1f\x8b\x08", "compressed by gzip", "gunzip it"),
)


def read_head(path: Path) -> tuple[bytes, int]:
    """Return the first bytes of a file, and its size.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES), file.seek(0, 2)


def find_kind(head: bytes, others: FileKinds) -> tuple[str, str] | None:
    """Return the kind of a file and the fix; None = it is unknown.

    Args:
        head: its first bytes.
        others: the kinds that a backend knows besides.
    """
    for mark, kind, fix in (*_NO_MODEL, *others):
        if re.match(mark, head, re.IGNORECASE | re.DOTALL):
            return kind, fix
    return None
