"""The documented commands that need systemd, run as printed, with the installed package.

tests/docs/test_pages.py runs all other commands.
"""

from __future__ import annotations

import shlex

import pytest

from tests.docs.pages import Step, pages, steps
from tests.system.service import Service

#: on the booted machine
CLONE = "/srv/edge-serve"


def with_systemd(page: str) -> list[Step]:
    return [step for step in steps(page) if step.kind == "left" and step.detail == "systemd"]


@pytest.mark.parametrize("page", [page for page in pages() if with_systemd(page)])
def test_page(fresh: Service, page: str) -> None:
    fresh.machine.put_folder(fresh.shipped("simple"), f"{CLONE}/model_repository/simple")
    if page not in ("README.md", "docs/service.md"):  # the commands that install and start the service
        fresh.add_shipped_models("simple")
        fresh.start()

    for step in with_systemd(page):
        done = fresh.machine.try_run(f"cd {CLONE} && bash -euo pipefail -c {shlex.quote(step.text)}", 120)
        assert done.status == 0, f"{step.text}\n{done.output}\n{fresh.machine.run('journalctl -n 30 --no-pager')}"

    assert fresh.machine.run("systemctl is-active edge-serve").strip() == "active"
