"""Repeated power cuts while models load and unload; the machine boots and serves after each.

`--machine nspawn` kills all processes at once and keeps their unsynced data; only a virtual machine loses it.
"""

from __future__ import annotations

import random
import time

import pytest

from tests.system.agent import KEPT
from tests.system.machine import wait_until
from tests.system.service import MODELS, Service

CUTS = 20

#: on the machine: load and unload models without end, as an operator's program would; new files are not synced
_CHURN = f"""\
import http.client, itertools, json, shutil, socket, time

def ask(path):
    connection = http.client.HTTPConnection("localhost", timeout=60)
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect("/run/edge-serve/admin.sock")
    connection.request("POST", path, "{{}}")
    connection.getresponse().read()

for turn in itertools.count():
    try:
        shutil.copytree("{MODELS}/churned/1", f"{MODELS}/churned/{{turn % 5 + 2}}", dirs_exist_ok=True)
        ask("/v2/repository/models/churned/load")
        shutil.rmtree(f"{MODELS}/churned/{{turn % 5 + 2}}")
        ask("/v2/repository/models/churned/unload")
    except (OSError, http.client.HTTPException):
        time.sleep(0.2)
"""


@pytest.mark.powercut
@pytest.mark.timeout(7200)
def test_machine_serves_after_each_power_cut(fresh: Service) -> None:
    machine, chance = fresh.machine, random.Random(20)
    fresh.add_shipped_models("simple")
    fresh.add_model(fresh.shipped("simple"), "churned")
    machine.run(f"sed -i 's/^name:.*//' {MODELS}/churned/config.pbtxt")
    fresh.configure(model_control_mode="explicit", load_model="simple")
    machine.put(f"{KEPT}/churn.py", _CHURN.encode())
    fresh.start()
    machine.run("sync")
    for cut in range(1, CUTS + 1):
        machine.run(f"systemd-run --quiet --unit=churn python3 {KEPT}/churn.py")
        time.sleep(chance.uniform(1.0, 20.0))
        loads = fresh.journal("-b -o cat").count("model churned version")
        machine.boot.cut()

        machine.start()
        assert wait_until(lambda: fresh.infers("simple"), 120 * fresh.patience, 1.0), fresh.journal("-b")[-4000:]

        assert wait_until(lambda: fresh.show("ActiveState") == "active", 30 * fresh.patience)
        print(f"cut {cut}: after {loads} loads; it boots and serves", flush=True)
