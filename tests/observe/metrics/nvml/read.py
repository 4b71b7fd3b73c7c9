"""Prints the readings of this process's libnvidia-ml as JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

from edge_serve.observe.metrics.gpu import find_gpus

sys.stdout.write(json.dumps([asdict(one) for one in find_gpus()()]))
