"""The status over the admin socket, and the fields of the journal, as a technician on the machine reads them."""

from __future__ import annotations

import json

from tests.system.machine import wait_until
from tests.system.service import Service


def test_status_command_needs_no_options_and_the_page_is_open_to_the_network(service: Service) -> None:
    status, page = service.ask("GET", "/ui")
    assert (status, page[:15]) == (200, "<!doctype html>")
    assert service.status_of("GET", "/edge-serve/status") == 200
    report = service.machine.run("edge-serve status")
    document = json.loads(service.machine.run("edge-serve status --json"))

    assert ": ready, up" in report.splitlines()[0]
    assert [(model["name"], model["condition"]) for model in document["models"]] == [("simple", "ready")]
    assert document["server"]["doors"]["admin"] == ["/run/edge-serve/admin.sock"]
    assert document["server"]["pid"] == service.main_pid()
    service.machine.run("systemctl stop edge-serve.socket edge-serve-grpc.socket edge-serve-metrics.socket edge-serve")
    assert service.machine.try_run("edge-serve status").status == 3


def test_journal_entries_name_their_model(service: Service) -> None:
    (pid,) = service.workers()
    service.machine.run(f"kill -SEGV {pid}")

    assert wait_until(lambda: "is back in worker" in service.journal("-o cat MODEL=simple"), 30 * service.patience)
    # read all entries: with a cursor, journalctl skips the first entry that passes a filter
    entries = [json.loads(line) for line in service.journal("-o json").splitlines()]
    lost = next(entry for entry in entries if entry.get("CODE_FUNC") == "_replace_process")
    assert "SIGSEGV" in lost["MESSAGE"]
    assert (lost["PRIORITY"], lost["SYSLOG_IDENTIFIER"], lost["_TRANSPORT"]) == ("3", "edge-serve", "journal")
    about = [entry["MESSAGE"] for entry in entries if (entry.get("MODEL"), entry.get("VERSION")) == ("simple", "1")]
    assert any(" ready in " in message for message in about)


def test_doctor_passes_a_healthy_device_and_reports_faults(service: Service) -> None:
    healthy = json.loads(service.machine.run("edge-serve doctor --json"))
    said = {finding["text"] for finding in healthy["findings"]}
    assert any(text.startswith("edge-serve.service: active (running), ") for text in said), said
    assert any(text.startswith("8000: edge-serve ") for text in said), said
    assert [finding for finding in healthy["findings"] if finding["good"] is False] == []

    service.machine.run("echo EDGE_SERVE_HTPP_PORT=1 > /etc/edge-serve/conf.d/typo.conf")
    try:
        done = service.machine.try_run("edge-serve doctor")
    finally:
        service.machine.run("rm /etc/edge-serve/conf.d/typo.conf")
    assert done.status == 1
    assert "did you mean EDGE_SERVE_HTTP_PORT?" in done.output


def test_check_runs_as_the_user_of_the_service(service: Service) -> None:
    models = "/var/lib/edge-serve/models"
    done = service.machine.try_run(f"edge-serve check --as edge-serve --infer {models}")
    assert (done.status, "1 of 1 models answer as their configuration says" in done.output) == (0, True), done.output
    service.machine.run(f"chmod 600 {models}/simple/1/model.onnx && chown root {models}/simple/1/model.onnx")
    done = service.machine.try_run(f"edge-serve check --as edge-serve {models}")
    service.machine.run(f"chmod 644 {models}/simple/1/model.onnx")
    assert (done.status, "Permission denied" in done.output) == (1, True), done.output
