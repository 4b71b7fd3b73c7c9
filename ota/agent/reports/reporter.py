"""Makes, signs, buffers, and sends the reports of this device at the end of a run. docs/ota_rollout.md lists their
members.

The device sends nothing unless an operator (REPORT_URL) or the rollout document names an address. A report must never
stop or delay an update for long: each wait has a limit, and each failure is one line.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from ota.agent import desired
from ota.agent.components import Components
from ota.agent.reports import outbox
from ota.agent.reports.outbox import ReportState
from ota.agent.reports.progress import bundle_report, failed_releases
from ota.agent.status_file import free_bytes, version
from ota.agent.system.state import as_journal, find_state
from ota.documents.names import SYSTEM
from ota.documents.report import MOST_CHAIN, MOST_FACTS, Report, encode_payload, report_path, seal
from ota.documents.rollout import Rollout
from ota.errors import AlreadyRunning, OtaError, UsageError
from ota.store import bad, history, journal, pause
from ota.store.lock import acquire_lock

#: the value of REPORT_URL that turns reports off
NOWHERE = "-"
#: seconds for sending waiting reports, before a run
FIRST_SECONDS = 5.0
#: seconds for sending all reports, after a run
LAST_SECONDS = 20.0
_NONCE_BYTES = 8


class Reporter:
    """Reports on one run.

    Attributes:
        errors: bundle -> the error with which the run ended for it.
    """

    def __init__(self, components: Components) -> None:
        self._components, self._layout = components, components.layout
        self.errors: Mapping[str, OtaError] = {}

    def note(self, outcomes: Iterable[tuple[str, OtaError | None]]) -> None:
        """Store the error of each bundle for the report."""
        self.errors = {bundle: error for bundle, error in outcomes if error is not None}

    def report(self, error: str = "") -> None:
        """Make a report, and send it with the waiting ones.

        Args:
            error: the word of the error that ended the run.
        """
        try:
            with acquire_lock(self._layout, "report"):
                is_wanted = self._make(error)
        except AlreadyRunning:
            return  # the other run makes the report
        except Exception as problem:  # no error of a report may fail an update
            self._components.tell(f"no report was made: {_text(problem)}")
            return
        if is_wanted:
            self.deliver(LAST_SECONDS)

    def deliver(self, limit: float) -> None:
        """Send the waiting reports. Reports that cannot be sent stay in the outbox.

        Args:
            limit: seconds.
        """
        if not outbox.waiting(self._layout):
            return
        url = self._url(None, outbox.read_state(self._layout))
        if not url:
            return  # `_make` removes them
        end = self._components.clock.monotonic() + limit

        def send(counter: int, data: bytes) -> None:
            self._put(self._address(url, counter), data, max(0.1, end - self._components.clock.monotonic()))

        try:
            outbox.deliver(self._layout, send, every="{counter}" in url)
        except Exception as problem:  # as above
            self._components.tell(f"the report waits for the next run: {_text(problem)}")

    def _make(self, error: str) -> bool:
        """Add a report to the outbox. Return whether an address for it is known."""
        rollout, state = self._rollout(), outbox.read_state(self._layout)
        url = self._url(rollout, state)
        if not url:
            outbox.clear(self._layout)
            if state.url:
                outbox.write_state(self._layout, replace(state, url=""))
            return False
        identity = self._components.device.identity
        state = self._next_state(state, rollout)
        report = self._content(state, rollout, error)
        payload = encode_payload(report)
        data = seal(payload, identity.signer.sign(payload), identity.public_pem.decode())
        outbox.add(self._layout, replace(state, chain=(*state.chain, report.link)[-MOST_CHAIN:]), data)
        return True

    def _rollout(self) -> Rollout | None:
        """Return the rollout document if this run has refreshed the metadata; a report is worth no other refresh."""
        if self._components.settings.report_url == NOWHERE or not self._components.trust.is_refreshed():
            return None
        try:
            return desired.wanted(self._components)
        except OtaError:
            return None

    def _url(self, rollout: Rollout | None, state: ReportState) -> str:
        """Return the URL for reports; "" = none."""
        own = self._components.settings.report_url
        if own:
            return "" if own == NOWHERE else own
        return state.url if rollout is None else rollout.report_url

    def _next_state(self, state: ReportState, rollout: Rollout | None) -> ReportState:
        """Return the state with the next counter and the newest facts."""
        counter = max([state.counter, *outbox.waiting(self._layout)]) + 1
        fleet, ring = state.fleet, state.ring
        if rollout is not None:
            with contextlib.suppress(OtaError):
                document = self._components.device.document(self._components.trust)
                fleet, ring = document.fleet, document.ring
        url = rollout.report_url if rollout else state.url
        return replace(state, counter=counter, url=url, fleet=fleet, ring=ring, facts=self._facts(state))

    def _facts(self, state: ReportState) -> Mapping[str, str]:
        """Return the facts of this run, or the last known ones, so that a run does not examine the machine for a report
        alone.
        """
        found = self._components.device.known_facts() or state.facts
        if not found:
            with contextlib.suppress(OtaError):
                found = self._components.device.facts()
        own = [(fact, value) for fact, value in sorted(found.items()) if not fact.startswith("label.")]
        return {_printable(fact[:128]): _printable(value[:256]) for fact, value in own[:MOST_FACTS]}

    def _content(self, state: ReportState, rollout: Rollout | None, error: str) -> Report:
        known, events = bad.load(self._layout), history.read(self._layout)
        bundles = {}
        for bundle in {*journal.bundles(self._layout), *(rollout.models if rollout else ())}:
            entry = journal.read(self._layout, bundle) or journal.Journal(bundle)
            bundles[bundle] = bundle_report(self._components, entry, rollout, known, events, self.errors.get(bundle))
        if (system := find_state(self._components.settings.system_root)) is not None:
            entry, error_here = as_journal(system, self._layout), self.errors.get(SYSTEM)
            bundles[SYSTEM] = bundle_report(self._components, entry, rollout, known, events, error_here)
        return Report(
            device=self._components.device.name,
            fleet=state.fleet,
            ring=state.ring,
            time=max(0, int(self._components.clock.now())),
            counter=state.counter,
            nonce=secrets.token_hex(_NONCE_BYTES),
            chain=state.chain,
            agent=version(),
            server=state.facts.get("edge_serve", "")[:64],
            facts=state.facts,
            bundles=bundles,
            bad=failed_releases(known),
            clock_unset=self._components.trust.clock_unset(),
            floors_lost=int(self._floors_lost()),
            paused=pause.read(self._layout) is not None,
            error=error,
            disk_free_bytes=free_bytes(self._layout),
        )

    def _floors_lost(self) -> float:
        """Return when the version floors were lost; 0 = never or unknown."""
        from ota.trust.floors import Floors

        with contextlib.suppress(OtaError):
            return Floors([self._layout.floors, self._components.settings.floor_copy]).lost
        return 0.0

    def _address(self, url: str, counter: int) -> str:
        """Return the URL of one report."""
        return address(url, self._components.device.name, self._components.device.identity.fingerprint, counter)

    def _put(self, url: str, data: bytes, limit: float) -> None:
        from ota.fetch.http import HttpOptions
        from ota.fetch.put import put

        settings = self._components.settings
        options = HttpOptions(min(settings.timeout, limit), settings.proxy, settings.ca_cert)
        if settings.report_url or _host(url) in {_host(one) for one in settings.url}:
            # the certificate is not sent to a host that only the rollout document names
            options = replace(options, client_cert=settings.client_cert, client_key=settings.client_key)
        put(url, data, options, limit)


def address(url: str, device: str, fingerprint: str, counter: int = 0) -> str:
    """Return the URL of a report: fill in `{counter}`, and the rest as `report_path` does."""
    url = url.replace("{counter}", str(counter))
    if "{device}" in url or "{key}" in url:
        return report_path(url, device, fingerprint)
    try:
        parts = urlsplit(url)
    except ValueError:
        raise UsageError(f"REPORT_URL: found {url.rpartition('@')[2][:100]!r}, expected an address") from None
    return parts._replace(path=report_path(parts.path, device, fingerprint)).geturl()


@contextlib.contextmanager
def report_run(components: Components) -> Iterator[Reporter]:
    """Send the waiting reports, run the block, and report its result.

    Raises:
        OtaError: of the block; never of a report.
    """
    reporter = Reporter(components)
    reporter.deliver(FIRST_SECONDS)
    try:
        yield reporter
    except AlreadyRunning:
        raise
    except OtaError as error:
        reporter.report(error.reason)
        raise
    reporter.report()


def _text(problem: Exception) -> str:
    return problem.message if isinstance(problem, OtaError) else f"{type(problem).__name__}: {problem}"


def _printable(text: str) -> str:
    """Return a text that `documents.report` accepts."""
    return "".join(one if one.isprintable() else "?" for one in text)


def _host(url: str) -> tuple[str, str | None, int | None]:
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname, parts.port
    except ValueError:
        return "", None, None
