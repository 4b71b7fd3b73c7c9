"""A device that is shut down while it works: the server stops beside the network, which keeps its address (DHCP)."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path

from tests.system.disk import Disk
from tests.system.machine import Machine
from tests.system.service import Service

_NETWORK_STOPPED = re.compile(r"Stopped\W+(?:\[[\d;]*m)?systemd-networkd\.service")
#: how long the model takes, seconds: the network has stopped for long when it answers
_TAKES = 15.0
_SLOW = f"""
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        time.sleep({_TAKES})
        inputs = [pb_utils.get_input_tensor_by_name(request, "INPUT0") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", one.as_numpy())]) for one in inputs]
"""


def test_a_request_that_was_accepted_is_answered_during_a_shutdown(image: Path) -> None:
    machine = Machine(boot := Disk(image))
    service = Service(machine)
    statuses: list[int] = []
    try:
        machine.start()
        service.add_python_model("slow", _SLOW)
        machine.run("chmod -R a+rX /var/lib/edge-serve/models; systemctl restart edge-serve", 120)
        client = threading.Thread(target=lambda: statuses.append(service.infer("slow", timeout=120)))
        client.start()
        time.sleep(3)
        machine.run("systemd-run --quiet --on-active=1s systemctl poweroff")  # the answer of this command comes first
        began = time.monotonic()
        client.join()
        print(f"answered {time.monotonic() - began:.0f} s after the order to power off")
        console = boot.since_start()
    finally:
        boot.stop()
    assert statuses == [200], console[-3000:]
    assert _NETWORK_STOPPED.search(console), "the network has to stop before the answer, or the test shows nothing"
