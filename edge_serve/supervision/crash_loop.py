"""Which models are left out after the service has died again and again. Pure: a record and what is there now go in.

A death counts when the process ended without having said so while the machine stayed up, or when models failed to load
and the settings made that the end. A clean end (SIGTERM) clears the deaths before it. The third in a row, with less
than `STABLE_SECONDS` of service between them, has consequences: the models that were loading each time are left out;
or those that were at work each time that this was observed; or, when there is no such model or that did not help, all.
So at the latest the seventh start serves health, metrics and the reasons.

No model is left out for good. All are tried again when the machine boots, and within one boot after the time that
`retry_ns` says. A try that ends in a death leaves the same models out again at once; one that serves for
`STABLE_SECONDS` clears the record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field, replace
from enum import Enum
from typing import Any

from edge_serve.records import frozen

#: deaths in a row that have consequences
DEATHS = 3
#: a service that has served for so long is in no crash loop
STABLE_SECONDS = 120.0
#: models that are left out are tried again after so long, seconds: the first time and each later time while no other
#: model serves, so that a try costs nothing; and while others do, which a try may take down
RETRY_FIRST, RETRY_LATER, RETRY_BESIDE_OTHERS = 600.0, 3600.0, 86400.0


class StartPhase(Enum):
    """The phase that the process recorded last."""

    ALIVE = "alive"
    FAILED = "failed to load"
    ENDED = "ended"


@frozen
class Suspects:
    """The models that may have caused a crash: those that were loading (or failed to), and those that were
    executing (None = this was not observed)."""

    loading: tuple[str, ...] = ()
    busy: tuple[str, ...] | None = None


@frozen
class LeftOut:
    """A model that is left out.

    Attributes:
        fingerprint: of its directory when it was left out; "" = there was none.
        reason: why it is left out.
    """

    fingerprint: str
    reason: str


@frozen
class Record:
    """The record that is kept from one process to the next.

    Attributes:
        boot: which run of the machine it is of; a power cut is no crash.
        now: what the process is doing.
        deaths: of the processes before it, in a row.
        left_out: models that are left out, by name.
        helpless: models were left out, and it has not served for a while since.
        trying: the models in `left_out` are loaded all the same, to see whether the service still dies.
        tries: how often they were, in this run of the machine.
        since_ns: when they were left out, by the monotonic clock.
    """

    boot: str = ""
    phase: StartPhase = StartPhase.ENDED
    now: Suspects = Suspects()
    deaths: tuple[Suspects, ...] = ()
    left_out: Mapping[str, LeftOut] = field(default_factory=dict)
    helpless: bool = False
    trying: bool = False
    tries: int = 0
    since_ns: int = 0

    def count_deaths(self) -> str:
        """Return a sentence about the deaths in a row; "" = there are none.

        They are counted anew after models were left out. The reasons have the number that led to that.
        """
        since = " since models were left out" if self.left_out else ""
        times = "once" if len(self.deaths) == 1 else f"{len(self.deaths)} times in a row"
        return f"the service died {times}{since}" if self.deaths else ""


def next_record(
    last: Record, boot: str, print_of: Callable[[str], str | None], models: Sequence[str], now_ns: int = 0
) -> Record:
    """Return the record of a process that starts.

    Args:
        last: of the process before it.
        print_of: a fingerprint of a model's directory; "" = there is none, None = it cannot be read now.
        models: those that are there.
    """
    died = last.phase is not StartPhase.ENDED
    same_boot = last.boot == boot
    left_out = {name: one for name, one in last.left_out.items() if print_of(name) in (one.fingerprint, None)}
    tries = last.tries if same_boot else 0
    if last.trying and died:  # also when the machine went down: a model that does that must not do it at every boot
        return Record(boot, StartPhase.ALIVE, left_out=left_out, helpless=True, tries=tries, since_ns=now_ns)
    deaths = (*last.deaths, last.now) if died and same_boot else ()
    if len(deaths) >= DEATHS:
        names, reason = (None, _NO_HELP) if last.helpless else _guilty(deaths[-DEATHS:], left_out)
        for name in names if names is not None else models:
            left_out.setdefault(name, LeftOut(print_of(name) or "", reason))
        return Record(boot, StartPhase.ALIVE, left_out=left_out, helpless=True, tries=tries, since_ns=now_ns)
    helpless = last.helpless and bool(deaths)
    trying = bool(left_out) and (last.trying or not same_boot)
    return Record(boot, StartPhase.ALIVE, Suspects(), deaths, left_out, helpless, trying, tries, last.since_ns)


def retry_ns(record: Record, others: bool) -> int | None:
    """Return when to load the models that are left out again, by the monotonic clock; None = there are none.

    Args:
        others: there are models that are not left out.
    """
    if not record.left_out or record.trying:
        return None
    seconds = RETRY_BESIDE_OTHERS if others else RETRY_LATER if record.tries else RETRY_FIRST
    return record.since_ns + int(seconds * 1e9)


def try_again(record: Record) -> Record:
    """Return the record of a process that loads the models that were left out again."""
    return replace(record, trying=True, tries=record.tries + 1)


_NO_HELP = f"the service died {DEATHS} times in a row again, without the models that were left out first"


def _guilty(deaths: Sequence[Suspects], known: Mapping[str, LeftOut]) -> tuple[list[str] | None, str]:
    """Return the models present at every crash, and a description; None if no model was present at all of them.

    The first process of a series does not observe which models are at work. One crash alone accuses no model.
    """
    observed = [one.busy for one in deaths if one.busy is not None]
    suspects = {"loading": [one.loading for one in deaths], "at work": observed if len(observed) > 1 else [()]}
    for what, groups in suspects.items():
        names = set(groups[0]).intersection(*groups[1:]) - known.keys()
        if names:
            times = "each time" if len(groups) == len(deaths) else f"the last {len(groups)} times"
            return sorted(names), f"it was {what} {times} when the service died {len(deaths)} times in a row"
    return None, f"the service died {len(deaths)} times in a row, and nothing says which model did it"


def stable(record: Record) -> Record:
    """Return the record of a process that has served for `STABLE_SECONDS`, with the models that it tries, if any."""
    if record.trying:
        return Record(record.boot, record.phase, record.now)
    return replace(record, deaths=(), helpless=False)


def as_text(record: Record) -> str:
    """Return a record as the text of its file."""
    return json.dumps({**asdict(record), "phase": record.phase.value}, indent=1)


def from_text(text: str) -> Record:
    """Parse a file. One that cannot be parsed is an empty record, because a guess could keep good models out."""
    try:
        value = json.loads(text)
        return Record(
            boot=str(value["boot"]),
            phase=StartPhase(value["phase"]),
            now=_suspects(value["now"]),
            deaths=tuple(map(_suspects, value["deaths"])),
            left_out={name: LeftOut(str(one["fingerprint"]), str(one["reason"]))
                      for name, one in value["left_out"].items()},
            helpless=value["helpless"] is True,
            # older releases did not write these members
            trying=value.get("trying") is True,
            tries=int(value.get("tries", 0)),
            since_ns=int(value.get("since_ns", 0)),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return Record()


def _suspects(value: dict[str, Any]) -> Suspects:
    busy = value["busy"]
    return Suspects(tuple(map(str, value["loading"])), None if busy is None else tuple(map(str, busy)))
