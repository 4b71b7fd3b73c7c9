"""Settings of the installed service: checked before a restart, and kept by an upgrade without questions."""

from __future__ import annotations

import json

from tests.system.agent import KEPT
from tests.system.service import CONF_D, MODELS, Service
from tests.systemd.test_environment_file import CASES


def test_check_config_reports_the_errors_of_a_restart(service: Service) -> None:
    machine = service.machine
    assert machine.run("edge-serve check-config").startswith("good: edge-serve.service with /usr/lib/edge-serve/")

    machine.put(f"{CONF_D}/1.conf", b'EDGE_SERVE_ID="x\nEDGE_SERVE_HTPP_PORT=1\n')
    machine.put(f"{CONF_D}/2.conf", b"EDGE_SERVE_HTTP_IDLE_TIMEOUT_SECS=x\n")
    done = machine.try_run("edge-serve check-config")
    assert done.status == 1
    assert f'{CONF_D}/1.conf line 1: the quote " is not closed' in done.output
    assert "Bad environment variable \"EDGE_SERVE_HTTP_IDLE_TIMEOUT_SECS\": found 'x', expected a number" in done.output

    machine.put(f"{CONF_D}/1.conf", b"EDGE_SERVE_HTPP_PORT=1\n")
    machine.put(f"{CONF_D}/2.conf", b"EDGE_SERVE_LOG_FILE=/var/log/edge-serve.log\n")
    machine.run(f"chmod 600 {MODELS}/simple/config.pbtxt")
    done = machine.try_run("edge-serve check-config")
    assert done.status == 1
    lines = done.output.splitlines()
    assert len(lines) == 4, done.output
    assert "EDGE_SERVE_HTPP_PORT is unknown and has no effect: did you mean EDGE_SERVE_HTTP_PORT?" in lines[0]
    assert f"'{MODELS}/simple/config.pbtxt' may not be read" in lines[1]
    assert "--log-file '/var/log/edge-serve.log': the directory '/var/log' may not be written" in lines[2]
    assert "(ProtectSystem=strict)" in lines[3]
    assert service.infer() == 200, "the check touches nothing"


def test_check_config_reads_credentials_as_root_and_other_files_as_the_service(service: Service) -> None:
    given = "/run/credentials/edge-serve.service/edge-serve_tokens"
    service.machine.put("/etc/edge-serve/credentials/tokens", b"what\n")
    service.machine.run("chmod 600 /etc/edge-serve/credentials/tokens")
    service.configure(token_file=given)
    done = service.machine.try_run("edge-serve check-config")

    assert done.status == 1
    assert f"the token file '{given}': line 1 is not" in done.output
    done = service.machine.try_run("setpriv --reuid edge-serve --clear-groups edge-serve check-config")
    assert done.status == 1
    assert "sudo edge-serve check-config" in done.output


def test_check_config_passes_before_the_first_start(fresh: Service) -> None:
    """Check before systemd has created the directories of the service."""
    assert fresh.machine.run("edge-serve check-config").startswith("good: ")


def test_a_service_without_a_repository_names_the_files_of_settings(fresh: Service) -> None:
    fresh.machine.put(f"{CONF_D}/1.conf", b"EDGE_SERVE_MODEL_REPOSITORY=\n")
    fresh.machine.try_run("systemctl start edge-serve", 120)

    assert "/etc/edge-serve/conf.d/*.conf: are they readable and quoted right?" in fresh.journal()


def test_settings_are_read_as_this_systemd_reads_them(fresh: Service) -> None:
    """Compare the parser of check-config with systemd."""
    machine = fresh.machine
    script = "import json, os; print(json.dumps({name: os.environ[name] for name in 'ABC' if name in os.environ}))"
    machine.put("/tmp/cases/shown.py", script.encode())
    for number, (text, values) in enumerate(CASES):
        file = f"/tmp/cases/{number}.env"
        machine.put(file, text.encode())
        shown = machine.run(f"systemd-run -q --wait --pipe -p EnvironmentFile={file} python3 /tmp/cases/shown.py")
        assert json.loads(shown) == values, text


def test_upgrade_keeps_changed_settings_without_questions(fresh: Service) -> None:
    """Upgrade from a package whose settings were a conffile in /etc; a changed one stays in force."""
    machine, old = fresh.machine, "/etc/edge-serve/edge-serve.conf"
    path = machine.run(f"ls {KEPT}/edge-serve_*.deb").split()[-1]
    steps = (
        "rm -rf /tmp/old && mkdir /tmp/old && cd /tmp/old",
        f"dpkg-deb -R {path} tree && mkdir -p tree/etc/edge-serve && echo EDGE_SERVE_ID=old > tree{old}",
        f"echo {old} > tree/DEBIAN/conffiles && sed -i 's/^Version: .*/Version: 0.0.1/' tree/DEBIAN/control",
        "sed -i '/old_settings$/d' tree/DEBIAN/postinst && dpkg-deb -Znone -b tree old.deb",
    )
    machine.run(" && ".join(steps), 300)
    for changed in (False, True):
        machine.run("dpkg -i --force-downgrade --force-confnew --force-confmiss /tmp/old/old.deb", 300)
        assert machine.run(f"cat {old}") == "EDGE_SERVE_ID=old\n"
        if changed:
            machine.run(f"echo EDGE_SERVE_ID=mine > {old}")
        output = machine.run(f"dpkg -i {path} </dev/null", 300)
        assert "Configuration file" not in output
        assert machine.try_run(f"cat {old}").output.strip().endswith("mine" if changed else "No such file or directory")
    machine.run("rm -rf /tmp/old")
