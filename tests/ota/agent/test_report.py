"""The reports of a device: what is in them, and that no trouble with them touches an update."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ota.agent.device.identity import load_identity
from ota.agent.reports import outbox
from ota.agent.reports import reporter as report
from ota.agent.reports.reporter import address, report_run
from ota.agent.update import Update, UpdateOptions
from ota.decide.probation import ProbationVerdict
from ota.documents.names import rollout_target
from ota.documents.report import BundleReport, Report, SealedReport, read_report
from ota.errors import FetchError, StoreError, Unsuitable, Untrusted, UsageError
from ota.store import pause
from ota.strict_json import parse, to_canonical_json
from tests.ota.clock import NOW
from tests.ota.device import LATER, Device
from tests.ota.report_server import ReportServer


@pytest.fixture
def server() -> Iterator[ReportServer]:
    with ReportServer() as found:
        yield found


@pytest.fixture
def device(tmp_path: Path, server: ReportServer) -> Device:
    """A device that serves release 16 of det, and shall report."""
    found = Device(tmp_path, report_url=server.url, floor_copy=tmp_path / "floors.json")
    found.facts.identity = load_identity(found.layout.identity)
    found.publish(release=16)
    run(found)
    return found


def run(device: Device, **options: Any) -> None:
    """Run the line, and report, as `edge-ota apply` does."""
    parts = device.parts()
    with report_run(parts) as reporter:
        outcomes = Update(parts, UpdateOptions(**options)).run()
        reporter.note((one.bundle, one.error) for one in outcomes)


def newest(server: ReportServer) -> Report:
    return sealed(server).report


def sealed(server: ReportServer) -> SealedReport:
    return read_report(server.files[server.puts[-1]])


def det(server: ReportServer) -> BundleReport:
    return newest(server).bundles["det"]


def test_a_report_says_what_runs_and_is_signed(device: Device, server: ReportServer) -> None:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    key = device.facts.identity.fingerprint[:8]
    assert server.puts == [f"/reports/dev-1.{key}.json"]
    found = sealed(server)
    load_pem_public_key(found.public_key.encode()).verify(found.signature, found.payload)  # type: ignore[union-attr, call-arg]  # Ed25519
    one = found.report
    assert (one.device, one.fleet, one.ring, one.time) == ("dev-1", "plant", "prod", int(NOW))
    assert one.facts == {"arch": "x86_64", "edge_serve": "0.1.0"}
    assert one.server == "0.1.0"
    assert one.bundles == {"det": BundleReport("det", 16, 0, 0, "", 16, int(NOW), "closed", "success")}
    assert (one.counter, one.chain, one.bad, one.clock_unset, one.error) == (1, (), (), False, "")
    assert outbox.waiting(device.layout) == []


def test_nothing_leaves_the_device_that_the_page_does_not_list(device: Device, server: ReportServer) -> None:
    page = (Path(__file__).parents[3] / "docs" / "ota_rollout.md").read_text()
    signed = parse(sealed(server).payload, "", 1 << 20)
    assert signed.pop("schema") == 1
    for member in [*signed, *signed["bundles"]["det"], *signed["bad"]]:
        assert f"`{member}`" in page, member
    assert sorted(server.headers) == ["Accept-Encoding", "Content-Length", "Content-Type", "Host", "User-Agent"]


def test_the_counter_rises_and_the_chain_names_the_reports_before(device: Device, server: ReportServer) -> None:
    links = [newest(server).link]
    for _ in range(25):
        run(device)
        one = newest(server)
        assert one.chain == tuple(links[-20:])
        links.append(one.link)
    assert [counter for counter, _ in links] == list(range(1, 27))
    assert len({nonce for _, nonce in links}) == 26


@pytest.mark.fault("R4")
def test_a_restored_disk_repeats_a_counter_with_another_nonce(device: Device, server: ReportServer) -> None:
    backup = device.root / "backup"
    shutil.copytree(device.layout.outbox, backup)
    run(device)
    seen = newest(server)
    shutil.rmtree(device.layout.outbox)
    shutil.copytree(backup, device.layout.outbox)
    run(device)
    again = newest(server)
    assert (again.counter, again.chain) == (seen.counter, seen.chain)
    assert again.nonce != seen.nonce


def test_a_release_that_fails_and_one_in_probation(device: Device, server: ReportServer) -> None:
    device.publish(release=17)
    device.trial.bad.add(("det", 17))
    run(device)
    assert det(server) == BundleReport("det", 16, 0, 0, "", 17, int(NOW), "closed", "failure", "trial")
    (failed,) = newest(server).bad
    assert (failed.bundle, failed.release, failed.reason, failed.permanent) == ("det", 17, "trial", True)

    device.publish(release=18)
    device.probation.verdicts = [(ProbationVerdict.WAIT, "10 of 500 requests")] * 100_000
    run(device)
    one = det(server)
    assert (one.release, one.next, one.stage, one.execution, one.result) == (18, 18, "PROBATION", "proceeding", "none")
    assert one.since == 0


def test_a_release_that_waits_or_cannot_run_here(device: Device, server: ReportServer) -> None:
    device.publish(release=17)
    device.want("det", 17, window=LATER)
    run(device)
    assert (det(server).execution, det(server).reason, det(server).stage) == ("scheduled", "window", "TESTED")
    device.publish(release=18, needs_agent="99.0")
    run(device)
    assert (det(server).wanted, det(server).result, det(server).reason) == (18, "failure", Unsuitable.reason)
    device.publish(release=19)
    device.fetcher.failures = [FetchError("cut")]
    run(device)
    assert (det(server).execution, det(server).result, det(server).reason) == ("download", "none", "fetch")


def test_a_run_that_ends_with_an_error_reports_it(device: Device, server: ReportServer) -> None:
    device.trust.failure = FetchError("the repository is gone")
    with pytest.raises(FetchError, match="the repository is gone"):
        run(device)
    assert newest(server).error == "fetch"
    assert det(server).release == 16
    pause.write(device.layout, pause.Pause(NOW, "maintenance"))
    device.trust.failure = None
    run(device)
    assert newest(server).paused
    device.trust.unset = True
    run(device)
    assert newest(server).clock_unset


@pytest.mark.parametrize("kind", ["failed", "paused"])
def test_a_report_of_a_run_without_metadata_fetches_none(
    device: Device, server: ReportServer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A second refresh would take as long as the first one, and no other command could start."""
    device.trust.refreshed = False
    monkeypatch.setattr(device.trust, "document", lambda *arguments: pytest.fail("a document was asked for"))
    monkeypatch.setattr(device.facts, "document", lambda *arguments: pytest.fail("a document was asked for"))
    if kind == "paused":
        pause.write(device.layout, pause.Pause(NOW))
        run(device)
    else:
        device.trust.failure = FetchError("the repository is gone")
        with pytest.raises(FetchError):
            run(device)
    found = newest(server)
    assert (found.paused, found.error) == ((True, "") if kind == "paused" else (False, "fetch"))
    assert (found.fleet, found.ring, det(server).release) == ("plant", "prod", 16)


def test_nothing_leaves_without_a_place_or_where_the_operator_forbids_it(tmp_path: Path, server: ReportServer) -> None:
    device = Device(tmp_path)
    device.publish(release=16)
    run(device)  # no key is read: NoSigner would complain
    assert not any(device.layout.outbox.iterdir())

    device = Device(tmp_path, report_url="-")
    device.publish(release=17)
    name_place(device, server.url)
    run(device)
    assert not any(device.layout.outbox.iterdir())
    assert server.puts == []


def name_place(device: Device, url: str) -> None:
    """Have the rollout document name where reports go."""
    path = rollout_target("plant")
    device.trust.documents[path] = to_canonical_json(
        {**parse(device.trust.documents[path], "", 1 << 20), "report_url": url}
    )


def test_the_rollout_document_names_the_place_until_it_no_longer_does(tmp_path: Path, server: ReportServer) -> None:
    device = Device(tmp_path)
    device.facts.identity = load_identity(device.layout.identity)
    device.publish(release=16)
    name_place(device, server.url)
    run(device)
    assert len(server.puts) == 1
    device.trust.failure = FetchError("no network")
    with pytest.raises(FetchError):
        run(device)  # the place is the one of the last document
    assert len(server.puts) == 2
    device.trust.failure, server.status = None, 500
    run(device)
    assert len(outbox.waiting(device.layout)) == 1
    name_place(device, "")
    server.puts.clear()
    server.status = 201
    run(device)
    assert outbox.waiting(device.layout) == []
    assert len(server.puts) == 1, "the report that waited was for the place of its time"
    run(device)
    assert len(server.puts) == 1


@pytest.mark.parametrize("status", [500, 403, 302, 0])
def test_a_server_that_fails_or_hangs_neither_delays_nor_fails_an_update(
    device: Device, server: ReportServer, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "FIRST_SECONDS", 0.2)
    monkeypatch.setattr(report, "LAST_SECONDS", 0.2)
    server.status = status
    for release in (17, 18):
        device.publish(release=release)
        started = time.monotonic()
        run(device)
        assert time.monotonic() - started < 2
        assert device.server.serving == {"det": release}
    assert outbox.waiting(device.layout) == [2, 3]
    assert "the report waits for the next run: http://127.0.0.1" in device.tell.lines[-1]
    server.status = 201
    run(device)
    assert outbox.waiting(device.layout) == []
    assert newest(server).counter == 4
    assert [one.counter for one in map(read_report_of, server.files.values())] == [4]


def read_report_of(data: bytes) -> Report:
    return read_report(data).report


def test_a_url_with_a_counter_gets_every_report_that_waited(device: Device, server: ReportServer) -> None:
    device.settings = replaced(device, f"{server.url}/{{device}}/{{counter}}")
    server.status = 500
    for _ in range(3):
        run(device)
    server.status = 201
    server.puts.clear()
    run(device)
    assert server.puts == [f"/reports/dev-1/{counter}" for counter in (2, 3, 4, 5)]


def replaced(device: Device, url: str) -> Any:
    from dataclasses import replace

    return replace(device.settings, report_url=url)


def test_the_outbox_is_bounded_and_keeps_the_newest(device: Device, server: ReportServer) -> None:
    data = server.files[server.puts[-1]]
    for counter in range(2, 120):
        outbox.add(device.layout, outbox.ReportState(counter), data)
    assert outbox.waiting(device.layout) == list(range(70, 120))


@pytest.mark.parametrize("torn", [b"", b"{", b'{"schema":1}', b"\0" * 100])
def test_a_torn_state_and_a_disk_that_takes_nothing_end_no_run(
    device: Device, server: ReportServer, torn: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (device.layout.outbox / "state.json").write_bytes(torn)
    run(device)
    assert (newest(server).counter, newest(server).chain) == (1, ())

    def refuse(*_: object) -> None:
        raise StoreError("read-only file system")

    monkeypatch.setattr(outbox, "add", refuse)
    run(device)
    assert device.tell.lines[-1] == "no report was made: read-only file system"


def test_facts_that_are_no_plain_text_and_a_history_that_is_nonsense(device: Device, server: ReportServer) -> None:
    device.facts.known = {"gpu": "Tegra\n\x00", "label.site": "hall-3", "long": "x" * 1000}
    run(device)
    assert newest(server).facts == {"gpu": "Tegra??", "long": "x" * 256}
    device.layout.history.write_text('{"event":"good","bundle":"det","release":16,"time":1e999}\n')
    run(device)
    assert device.tell.lines[-1].startswith("no report was made: OverflowError")
    device.publish(release=17)
    run(device)
    assert device.server.serving == {"det": 17}
    assert det(server).release == 17


def test_the_address_of_a_report() -> None:
    assert address("https://r.example/x", "dev", "ab") == "https://r.example/x/dev.ab.json"
    assert address("https://r.example/x?sig=1", "dev", "ab") == "https://r.example/x/dev.ab.json?sig=1"
    assert address("https://r.example/{key}/{device}-{counter}", "dev", "ab", 7) == "https://r.example/ab/dev-7"
    assert address("https://r.example/{counter}", "dev", "ab", 7) == "https://r.example/7/dev.ab.json"


@pytest.mark.parametrize("wrong", ["ftp://x", "reports", "http://", "http://[", "http://x:99999999"])
def test_a_place_that_is_no_address_is_named(device: Device, wrong: str) -> None:
    device.settings = replaced(device, wrong)
    run(device)
    assert "REPORT_URL: found " in device.tell.lines[-1]
    assert ", expected an address" in device.tell.lines[-1]


def test_the_error_of_an_address_has_no_password() -> None:
    with pytest.raises(UsageError, match=r"^REPORT_URL: found 'r.example/\[', expected an address"):
        address("https://user:[ss-word@r.example/[", "dev", "ab")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda one: one["signed"].update(counter=0), "counter is 0"),
        (lambda one: one["signed"].update(more=1), "unknown member 'more'"),
        (lambda one: one["signed"].update(device="../x"), "device is '../x'"),
        (lambda one: one["signed"].update(chain=[[1]]), "chain has"),
        (lambda one: one["signed"]["bundles"]["det"].update(result="fine"), "result is \"fine\""),
        (lambda one: one.update(signature="zz"), "signature is 'zz'"),
        (lambda one: one.update(public_key=7), "public_key is not a PEM public key"),
        (lambda one: one["signed"].pop("nonce"), "lacks the member 'nonce'"),
    ],
)  # fmt: skip
def test_malformed_reports_are_refused(device: Device, server: ReportServer, change: Any, complaint: str) -> None:
    found = parse(server.files[server.puts[-1]], "", 1 << 20)
    change(found)
    with pytest.raises(Untrusted, match=complaint):
        read_report(to_canonical_json(found), "x.json")
