"""Counts the devices of a rollout by a Prometheus server that scrapes edge-serve on the fleet."""

from __future__ import annotations

import json
from urllib.parse import quote

from ota.decide.gate import GateLimits, Tally
from ota.documents.rollout import BundleRollout
from ota.errors import FetchError
from ota.fetch.http import HttpOptions, HttpSource

_MOST_REPLY = 16 * 1024 * 1024
_TIMEOUT = 30.0
#: labels that name one edge-serve
_ON = "on(job, instance)"


def queries(wish: BundleRollout, matchers: str, bounds: GateLimits) -> dict[str, str]:
    """Return the PromQL query of each figure.

    Args:
        matchers: labels of the fleet's targets: `fleet="plant-a"`; "" = all targets.
    """
    more = f",{matchers}" if matchers else ""
    model = f'model="{wish.bundle}"'
    age = f"edge_ota_status_age_seconds{{{matchers}}} < {bounds.silent_seconds:.0f}"

    def good(offset: str = "") -> str:
        release = f'edge_ota_release{{{model},release="{wish.want}"{more}}}{offset} == 1'
        return f'({release} and {_ON} edge_ota_state{{{model},state="GOOD"{more}}}{offset} == 1)'

    soak = f" and {_ON} {good(f' offset {bounds.soak_seconds:.0f}s')}" if bounds.soak_seconds else ""
    failed = f'edge_ota_release_failed{{{model},release="{wish.want}"{more}}} == 1'
    return {
        "good": f"count({good()} and {_ON} {age})",
        "soaked": f"count(({good()}{soak}) and {_ON} {age})",
        "failed": f"count(({failed}) unless {_ON} {good()})",
        "targets": f"count(edge_ota_status_readable{{{matchers}}})",
    }


def ask(url: str, wish: BundleRollout, included: int, matchers: str, bounds: GateLimits) -> Tally:
    """Query Prometheus, and return the tally of a rollout.

    Args:
        included: devices that the steps include, by the documents.

    Raises:
        UsageError: the URL is none. FetchError: no Prometheus answers there, or it refuses a query.
    """
    source = HttpSource(url, HttpOptions(timeout=_TIMEOUT))
    found = {name: _value(source, query) for name, query in queries(wish, matchers, bounds).items()}
    if not found["targets"]:
        which = f"with {matchers} " if matchers else ""
        raise FetchError(f"{source}: no target {which}has the metric edge_ota_status_readable: check --select")
    failed = min(included, found["failed"])
    good = min(included - failed, found["good"])
    return Tally(included, good, min(good, found["soaked"]), failed)


def _value(source: HttpSource, query: str) -> int:
    """Return the value of a counting query; no series = 0."""
    data = source.get(f"api/v1/query?query={quote(query, safe='')}", _MOST_REPLY)
    try:
        reply = json.loads(data)
        if reply["status"] != "success":
            raise FetchError(f"{source}: {reply.get('error')}")
        result = reply["data"]["result"]
        return int(float(result[0]["value"][1])) if result else 0
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        raise FetchError(f"{source} answers no query as a Prometheus does: {data[:60]!r}") from None
