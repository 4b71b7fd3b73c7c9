"""The fault list: every row has a test."""

from __future__ import annotations

import ast

from tests.ota.faults import ROOT, ROWS, _of_module, marked, page


def test_every_row_has_a_test_and_every_mark_a_row() -> None:
    assert set(marked()) == {row for table in ROWS.values() for row in table}


def test_the_page_is_up_to_date() -> None:
    assert (ROOT / "docs/ota_faults.md").read_text() == page(), "run `make docs`"


def test_marks_are_found_wherever_pytest_finds_them() -> None:
    module = ast.parse(
        "pytestmark = [pytest.mark.slow, pytest.mark.fault('T1')]\n"
        "@pytest.mark.fault('T2', 'T3')\ndef test_a(): ...\n"
        "@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.fault('T4'))])\ndef test_b(x): ...\n"
        "@pytest.mark.fault('T7')\nclass TestC:\n    @pytest.mark.fault('T6')\n    def test_c(self): ...\n"
        "@pytest.mark.fault('T5')\ndef helper(): ...\n"
    )
    rows = sorted((row, test.name, test.is_slow) for row, test in _of_module(module, "x.py"))
    assert rows == [
        ("T1", "test_a", True), ("T1", "test_b", True), ("T1", "test_c", True), ("T2", "test_a", True),
        ("T3", "test_a", True), ("T4", "test_b", True), ("T6", "test_c", True), ("T7", "test_c", True),
    ]  # fmt: skip
