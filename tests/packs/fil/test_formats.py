"""Formats of model files, told apart without the library."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_serve.errors import Unavailable
from packs.fil.formats import XGBOOST_JSON, check_format


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be read: Is a directory; give the server's user the right"):
        check_format(tmp_path, XGBOOST_JSON)
