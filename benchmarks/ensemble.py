"""How many inferences per second through an ensemble of three Python models, beside Triton?"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import load, peer
from benchmarks.report import Report
from benchmarks.servers import MODELS, both, repository

CONNECTIONS = 8
#: the ratio that the project requires
BAR = 1.2


def run(rounds: int = 3) -> Report:
    """Measure with perf_analyzer over binary HTTP, both servers in turn."""
    report = Report("ensemble", "inferences per second through 3 Python add/sub steps beside Triton's (perf_analyzer)")
    with models() as folder, peer.noted(report.notes), both(folder) as (ours, theirs):
        measure = functools.partial(load.perf_analyzer, model="chain", connections=CONNECTIONS)
        row = load.versus(ours, theirs, measure, rounds, "chain")
        report.rows.append({"connections": CONNECTIONS, **row, "asked": BAR})
    return report


@contextmanager
def models() -> Iterator[Path]:
    """Write three models and the ensemble `chain`, in which each model reads the outputs of the one before."""
    with repository([]) as folder:
        source = MODELS / "add_sub"
        for number in range(3):
            target = folder / f"step{number}"
            (target / "1").mkdir(parents=True)
            (target / "1/model.py").write_bytes((source / "1/model.py").read_bytes())
            config = (source / "config.pbtxt").read_text().replace('name: "add_sub"', f'name: "step{number}"', 1)
            (target / "config.pbtxt").write_text(config)
        (folder / "chain/1").mkdir(parents=True)
        (folder / "chain/config.pbtxt").write_text(_chain())
        yield folder


def _chain() -> str:
    def tensor(number: int, which: int) -> str:
        if number in (0, 3):
            return f"{'OUTPUT' if number else 'INPUT'}{which}"
        return f"between{number}_{which}"

    steps = []
    for number in range(3):
        maps = [f'input_map {{ key: "INPUT{i}" value: "{tensor(number, i)}" }}' for i in (0, 1)]
        maps += [f'output_map {{ key: "OUTPUT{i}" value: "{tensor(number + 1, i)}" }}' for i in (0, 1)]
        steps.append(f'step {{ model_name: "step{number}" model_version: -1 {" ".join(maps)} }}')
    faces = [
        f'{kind.lower()} {{ name: "{kind}{i}" data_type: TYPE_INT32 dims: [ 16 ] }}'
        for kind in ("INPUT", "OUTPUT")
        for i in (0, 1)
    ]
    return f'platform: "ensemble"\nmax_batch_size: 8\n{" ".join(faces)}\nensemble_scheduling {{ {" ".join(steps)} }}\n'
