"""Records the repository entries that cannot be read: logs each once, and keeps the reason for the index."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping
from enum import Enum, auto

from edge_serve.messages.log_fields import model_fields
from edge_serve.models.repository.names import shown

log = logging.getLogger(__name__)


class ReadStage(Enum):
    """The stage at which reading an entry failed. The reason of the first stage is shown."""

    FIND = auto()
    """Find out whether it is a directory, or leads to one."""
    WALK = auto()
    """Walk through its directory."""
    LOAD = auto()
    """Read what a load needs."""


class Faults:
    """The entries that cannot be read, by the names of their models. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[ReadStage, dict[str, str]] = {stage: {} for stage in ReadStage}

    def reasons(self) -> dict[str, str]:
        """Return the reason for each model that cannot be read."""
        with self._lock:
            return self._all()

    def scanned(self, models: Collection[str], faults: Mapping[str, str]) -> None:
        """Take over the result of a scan: `models`, and the reasons why other entries cannot be read."""
        with self._lock:
            known = self._all()
            for name in faults.keys() - known.keys():
                _log(name, faults[name])
            self._reasons[ReadStage.FIND] = dict(faults)
            for stage in (ReadStage.WALK, ReadStage.LOAD):
                reasons = self._reasons[stage]
                self._reasons[stage] = {name: reasons[name] for name in reasons if name in models}

    def add(self, stage: ReadStage, name: str, reason: str) -> None:
        """Record that a model cannot be read."""
        with self._lock:
            if name not in self._all():
                _log(name, reason)
            self._reasons[stage][name] = reason

    def remove(self, stage: ReadStage, name: str) -> None:
        """Record that a model could be read."""
        with self._lock:
            before = name in self._all()
            self._reasons[stage].pop(name, None)
            if before and name not in self._all():
                log.info("model %s can be read again", shown(name), extra=model_fields(name))

    def _all(self) -> dict[str, str]:
        return {name: reason for stage in reversed(ReadStage) for name, reason in self._reasons[stage].items()}


def _log(name: str, reason: str) -> None:
    log.warning("model %s is left out: %s", shown(name), reason, extra=model_fields(name))
