"""`edge-serve check-config`: would the service start with the settings and files as they are now (as `nginx -t`)?

Without options, root checks the installed service: the files of settings as systemd reads them, then in a child process
that runs as the service's user what the settings name. With options, or without an installed service, the command
line and the environment are checked as the caller.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Mapping, Sequence

from edge_serve.backends.packs import notes_on_backends
from edge_serve.check import files as check_files
from edge_serve.config.settings.server import SETTINGS, ServerConfig, parse_argv
from edge_serve.config.settings.table import BadSetting, flag_of, unknown_variables
from edge_serve.files import read_small
from edge_serve.messages.line import one_line
from edge_serve.records import frozen
from edge_serve.systemd.unit import NAME, Unit, environment_of, find_unit
from edge_serve.workers.launch.interpreter import own_interpreter

#: of the child process, which prints a problem a line and nothing else
LINES = "--lines"
#: the settings that name files to read, and files, directories and sockets to write
_READ = (
    "token_file", "certificate_role_file", "http_server_cert", "http_server_key", "http_root_cert", "grpc_server_cert",
    "grpc_server_key", "grpc_root_cert",
)  # fmt: skip
_WRITTEN = ("log_file", "state_directory", "execution_env_directory", "admin_socket", "http_unix_socket")
#: a file system that does not answer would keep the check for ever
_SECONDS = 60.0

#: this command has the options of the server
_HELP = """\
usage: edge-serve check-config [option...]

Say whether the server would start with its settings as they are: names and
values, and the files, directories, addresses and users that they name.
Nothing is started or changed, and no model is loaded.

Without options it checks the installed service: the files in
/etc/edge-serve/conf.d as systemd reads them, as the service's user
(root only). With options, or without an installed service, it checks the
options and the environment, as you. The options are those of
'edge-serve serve --help'.

Exit status: 0 good, 1 there are problems, one a line.
"""


def run(arguments: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Print what is wrong, a line each, and what follows from it; the exit status."""
    if "--help" in arguments or "-h" in arguments:
        print(_HELP, end="")
        return 0
    if LINES in arguments:
        found = _problems_here([one for one in arguments if one != LINES], environ)[0]
        for text in found:
            print(one_line(text))
        return 1 if found else 0
    checked = examine(arguments, environ)
    lines = [f"warning: {text}" for text in checked.warnings] + [f"problem: {text}" for text in checked.problems]
    for text in lines if checked.problems else [*lines, f"good: {checked.subject}"]:
        print(one_line(text))
    return 1 if checked.problems else 0


@frozen
class Checked:
    """The finding of one check.

    Attributes:
        subject: what was checked.
    """

    problems: Sequence[str]
    warnings: Sequence[str] = ()
    subject: str = ""


def examine(arguments: Sequence[str], environ: Mapping[str, str]) -> Checked:
    """Check the installed service, or with arguments or without a service the command line and the environment."""
    unit = None if arguments else find_unit()
    if unit is None:
        return Checked(*_problems_here(arguments, environ), "this command line and environment")
    if os.geteuid() != 0:
        text = f"{NAME} is installed: its files and its user can be checked by root only: sudo edge-serve check-config"
        return Checked([text])
    environment = environment_of(unit)
    found, warnings = _problems_of_service(unit, environment.values)
    subject = f"{NAME} with {', '.join(environment.files) or 'no file'}"
    return Checked(environment.problems + found, warnings, subject)


def _read(arguments: Sequence[str], environ: Mapping[str, str]) -> tuple[ServerConfig | None, list[str], list[str]]:
    """Return the settings, problems, and warnings. A misspelt variable is a problem here: it is why people check."""
    unknown = unknown_variables(SETTINGS, environ)
    try:
        config = parse_argv(arguments, environ)
    except BadSetting as error:
        return None, [*unknown, error.message], []
    absent = notes_on_backends([setting.backend for setting in config.backend_config], config.backend_directory)
    return config, unknown, [*(note for note in config.notes if note not in unknown), *absent]


def _problems_here(arguments: Sequence[str], environ: Mapping[str, str]) -> tuple[list[str], list[str]]:
    config, found, warnings = _read(arguments, environ)
    if config is not None:
        made = tuple(filter(None, environ.get("EDGE_SERVE_CHECK_MADE", "").split(":")))
        found += check_files.problems(config, environ, made)
    return found, warnings


def _problems_of_service(unit: Unit, values: dict[str, str]) -> tuple[list[str], list[str]]:
    values = {**values, "INVOCATION_ID": "check-config"}
    config, found, warnings = _read((), values)
    if config is not None:
        found += [text for text in _problems_as_user(unit, values) if text not in found]
        found += check_sandbox(config, unit)
    return found, warnings


def _problems_as_user(unit: Unit, values: Mapping[str, str]) -> list[str]:
    """Return what the service's user could not use; credentials are handed over as systemd does it, read by root."""
    try:
        user = pwd.getpwnam(unit.user)
    except KeyError:
        return [f"there is no user '{unit.user}' (User= of {NAME}): systemd-sysusers edge-serve.conf"]
    given = {name: text for name, text in values.items() if name.startswith("EDGE_SERVE_")}
    names: dict[str, str] = {}
    files: list[int] = []
    try:
        for seen, source in unit.credentials.items():
            if any(seen in text for text in given.values()):
                files.append(_copy(source))
                names[f"/proc/self/fd/{files[-1]}"] = seen
        for path, seen in names.items():
            given = {name: path if text == seen else text for name, text in given.items()}
        lines = _ask(user, {**given, "EDGE_SERVE_CHECK_MADE": ":".join(unit.made)}, files)
    except OSError as error:
        return [f"the check as user '{unit.user}' cannot be made: {error}"]
    finally:
        for descriptor in files:
            os.close(descriptor)
    for path, seen in names.items():
        lines = [line.replace(path, seen) for line in lines]
    copied = f"/run/credentials/{NAME}/"
    hint = "; systemd copies it from where LoadCredential= says (/etc/edge-serve/credentials/) when the service starts"
    return [line + hint if copied in line else line for line in lines]


def _copy(source: str) -> int:
    descriptor = os.memfd_create("credential")
    with open(descriptor, "wb", closefd=False) as file:
        file.write(read_small(source))
    return descriptor


def _ask(user: pwd.struct_passwd, given: Mapping[str, str], files: Sequence[int]) -> list[str]:
    """Return the lines of a check that runs as `user`.

    Raises:
        OSError: it cannot be started.
    """
    interpreter = own_interpreter()
    variables = {name: text for name, text in interpreter.variables.items() if not name.startswith("EDGE_SERVE_")}
    command = [*interpreter.command, "edge_serve", "check-config", LINES]
    groups = os.getgrouplist(user.pw_name, user.pw_gid)
    try:
        done = subprocess.run(
            command, env={**variables, **given}, user=user.pw_uid, group=user.pw_gid, extra_groups=groups, cwd="/",
            pass_fds=files, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return [f"what the settings name does not answer within {_SECONDS:g} s: is a file system unreachable?"]
    lines = done.stdout.splitlines()
    if done.returncode == (1 if lines else 0):
        return lines
    reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    return [*lines, f"the check as user '{user.pw_name}' ended with status {done.returncode}: {reason}"]


def check_sandbox(config: ServerConfig, unit: Unit) -> list[str]:
    """Return what the user may use and the unit's sandbox keeps from the service."""
    found = []
    written = [*_named(config, _WRITTEN), ("--trace-config triton,file", config.trace_config.file)]
    read = [("--model-repository", path) for path in config.model_repository] + _named(config, _READ)
    for flag, path in [*read, *written]:
        hidden = [folder for folder in unit.hidden if path and _is_below(path, folder)]
        if hidden:
            found.append(f"{flag} '{path}': the service cannot see {hidden[0]} (ProtectHome=): move it, as to /var/lib")
    for flag, path in written:
        if path and unit.writable is not None and not any(_is_below(path, folder) for folder in unit.writable):
            advice = f"choose a path below {unit.writable[0]}, or `systemctl edit {NAME}` (ReadWritePaths=)"
            found.append(f"{flag} '{path}': the service may not write there (ProtectSystem=strict): {advice}")
    return found


def _named(config: ServerConfig, names: Sequence[str]) -> list[tuple[str, str]]:
    return [(flag_of(name), getattr(config, name)) for name in names]


def _is_below(path: str, folder: str) -> bool:
    above = os.path.realpath(folder)  # such as /var/lib/edge-serve on another disk
    return os.path.commonpath([os.path.realpath(path), above]) == above
