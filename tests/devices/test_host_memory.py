"""The memory of the machine and of its control groups, read from files that the tests write."""

from __future__ import annotations

from pathlib import Path

from edge_serve.devices.host_memory import read_memory, total_memory

MIB = 1 << 20


def machine(root: Path, cgroup: str = "", **files: str) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal: 8192 kB\nMemFree: 1 kB\nMemAvailable: 4096 kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    return root


def group(root: Path, path: str, version: int, limit: str, used: int, cache: int) -> None:
    folder = root / "sys/fs/cgroup" / path
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(
        f"anon 5\n{'inactive_file' if version == 2 else 'total_inactive_file'} {cache}\n"
    )


def test_without_control_groups_the_machine_counts(tmp_path: Path) -> None:
    assert read_memory(machine(tmp_path)) == (8 * MIB, 4 * MIB)


def test_the_tightest_group_counts(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/outer/inner\n")
    group(root, "outer/inner", 2, "max", 3 * MIB, 0)
    group(root, "outer", 2, str(2 * MIB), 3 * MIB // 2, MIB // 2)

    assert read_memory(root) == (2 * MIB, MIB)


def test_version_one_of_control_groups(tmp_path: Path) -> None:
    root = machine(tmp_path, "9:name=systemd:/\n4:cpu,memory:/box\n0::/\n")
    group(root, "memory/box", 1, str(6 * MIB), 5 * MIB, 0)
    group(root, "memory", 1, "9223372036854771712", 7 * MIB, 0)

    assert read_memory(root) == (6 * MIB, MIB)


def test_the_kernel_is_asked_where_the_files_are_missing(tmp_path: Path) -> None:
    assert read_memory(tmp_path) == (0, 0)
    assert total_memory(tmp_path) > MIB
