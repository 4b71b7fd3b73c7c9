"""The files that the initrd reads ahead, on the booted device: an old list costs time, and says nothing."""

from __future__ import annotations

import re

from tests.system.machine import Machine

#: large, and hardly read at a start (image/mkosi/readahead)
LEFT_OUT = "libscipy_openblas"
_PROCESSES = "find /sys/fs/cgroup/edge.slice/edge-serve.service -name cgroup.procs -exec cat {} +"
_MAPS = f"{_PROCESSES} | sed 's|.*|/proc/&/maps|' | xargs cat"


def test_the_list_has_each_file_that_the_server_and_its_workers_map(machine: Machine) -> None:
    listed = set(machine.run("cat /usr/lib/edge-device/readahead").splitlines())
    mapped = set(re.findall(r" /((?:opt|usr)/.*)$", machine.run(_MAPS), re.MULTILINE))
    assert any("onnxruntime_pybind11_state" in path for path in mapped), "a worker runs"
    assert [path for path in sorted(mapped - listed) if LEFT_OUT not in path] == []


def test_the_initrd_has_read_them(machine: Machine) -> None:
    log = machine.run("journalctl -b -u edge-readahead.service -o cat")
    print(log)
    assert "cat:" not in log, "a file of the list is missing"
    read = re.search(r"Consumed .*, ([0-9.]+)M memory peak", log)
    assert read, "what it read counts as its memory"
    assert float(read[1]) > 60
