"""From a model directory to a configuration that can be served: the stages of a load, in order.

1. `load_model_config`: read config.pbtxt (or a load request's override), fill in defaults, refuse what cannot work.
   Its errors are Triton's "failed to poll from model repository".
2. `settle_instances`: instance groups on this machine, and what else Triton checks for each version: initial states.
   From here on errors belong to the version that is loading.
3. `merge_completed`: what the worker's backend said about the model itself; checks inputs and outputs too.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edge_serve.config.checks.batching import check_initial_states
from edge_serve.config.checks.checks import check_model_config
from edge_serve.config.checks.instances import check_instance_groups
from edge_serve.config.checks.io import check_inputs_and_outputs
from edge_serve.config.model import model_config_pb2 as pb
from edge_serve.config.model.json_form import model_config_from_json
from edge_serve.config.model.layout import CONFIG_FILE, advice_on_backend, refusal_of
from edge_serve.config.model.normalise import UnknownBackend, normalise, normalise_instance_groups
from edge_serve.config.model.text import parse_model_config
from edge_serve.errors import Internal, InvalidArgument, UnreadableEntry, with_advice

#: limits of a configuration, of a file of class labels, and of other files that a configuration names
MOST_CONFIG_BYTES = 1 << 20
MOST_LABEL_BYTES = 1 << 26
MOST_FILE_BYTES = 1 << 30


def load_model_config(
    model_directory: Path,
    *,
    auto_complete: bool,
    config_name: str | None = None,
    override: bytes | str | None = None,
    name: str = "",
) -> pb.ModelConfig:
    """Read the configuration of the model in `model_directory`, as far as it is known without loading the model.

    Args:
        auto_complete: a missing file is an empty one, and inputs and outputs are checked only by `merge_completed`.
        config_name: `--model-config-name`: `configs/<name>.pbtxt` goes before config.pbtxt.
        override: JSON from a load request, in place of the file.
        name: of the model, where it is not the directory's: a link in the repository leads there.

    Raises:
        EdgeServeError: with Triton's text where it has one.
    """
    name = name or model_directory.name
    if override is None:
        config = _read(_config_file(model_directory, config_name), name, auto_complete)
    else:
        config = _from_override(override)
    try:
        config = normalise(config, name, first_version_files(model_directory))
    except UnknownBackend as error:
        raise InvalidArgument(with_advice(error.message, advice_on_backend(model_directory, name))) from None
    check_model_config(config)
    if not auto_complete:
        check_inputs_and_outputs(config)
    if config.name != name:
        link = f"make the link {config.name} in its place" if name != model_directory.name else ""
        raise InvalidArgument(
            f"unexpected directory name '{name}' for model '{config.name}', directory name must equal model name; "
            f'remove the line name: "{config.name}" from config.pbtxt, or: {link or f"mv {name} {config.name}"}'
        )
    return config


def settle_instances(
    config: pb.ModelConfig,
    gpus: Sequence[int] | None = None,
    min_compute_capability: float = 0.0,
    lack: str = "",
    *,
    auto: bool = True,
) -> pb.ModelConfig:
    """Return `config` with its instance groups filled in for this machine.

    Args:
        gpus: ids of the usable GPUs; None = this server has no GPU support.
        lack: why no GPU is usable; "" = one is, or nothing hints at a GPU.
        auto: KIND_AUTO may be a GPU: the backend can use one.

    Raises:
        InvalidArgument: a group asks for what the machine does not have, or an initial state does not fit its state.
    """
    settled = normalise_instance_groups(config, gpus or (), auto=auto)
    check_instance_groups(settled, gpus, min_compute_capability, lack)
    check_initial_states(settled.sequence_batching)
    return settled


def merge_completed(config: pb.ModelConfig, document: dict[str, Any] | None) -> pb.ModelConfig:
    """Return the final configuration, fully checked: `document` (Triton's JSON from the worker) in place of `config`.

    Args:
        document: None = the backend completed nothing.

    Raises:
        EdgeServeError: the model and its configuration do not agree with Triton's rules.
    """
    completed = config if document is None else normalise(model_config_from_json(document), config.name)
    if completed.name != config.name:
        raise Internal(f"model '{config.name}' renamed itself to '{completed.name}' while it was auto-completed")
    check_model_config(completed)
    check_inputs_and_outputs(completed)
    return completed


def read_file(path: Path, most: int = MOST_FILE_BYTES) -> bytes:
    """Read a file that a model's configuration names.

    Raises:
        Internal: there is no such file; with Triton's text.
        UnreadableEntry: it is no file, or longer than `most` bytes, or the file system refuses it.
    """
    try:
        if path.exists() and not path.is_file():
            raise UnreadableEntry(f"failed to open text file for read {path}: not a file")
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        wrong = Internal if isinstance(error, FileNotFoundError) else UnreadableEntry
        text = f"failed to open text file for read {path}: {refusal_of(error, path.parent)}"
        broken = wrong is Internal and path.is_symlink()
        advice = "it is a link to a file that does not exist: correct the link" if broken else ""
        raise wrong(with_advice(text, advice)) from error
    except ValueError as error:
        raise Internal(f"failed to open text file for read {str(path)!r}: {error}") from error
    if len(content) > most:
        raise UnreadableEntry(
            f"{path.parent.name}/{path.name} is longer than {most} bytes, which is the limit: shorten it"
        )
    return content


def check_files(model_directory: Path, config: pb.ModelConfig, versions: Sequence[int]) -> None:
    """Check that the files that make a model load are files which the server may read, as far as they exist.

    A worker that opened a named pipe would wait for its writer.

    Raises:
        UnreadableEntry: one is a named pipe or a device, or the server may not read it.
    """
    named = [f"{version}/{config.default_model_filename}" for version in versions if config.default_model_filename]
    for name in [*named, *(output.label_filename.lstrip("/") for output in config.output if output.label_filename)]:
        try:
            mode = os.stat(model_directory / name).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise UnreadableEntry(f"cannot be read: '{name}' is a pipe, a socket or a device, expected a file")
            if not os.access(model_directory / name, os.R_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except (FileNotFoundError, ValueError):
            continue
        except OSError as error:
            raise UnreadableEntry(f"cannot be read: '{name}': {refusal_of(error, model_directory)}") from error


def first_version_files(model_directory: Path) -> frozenset[str]:
    """Return the entries of the lowest version's directory, directories with a `/` at the end; none without versions.

    Raises:
        UnreadableEntry: the model directory, or that of the version, cannot be read.
    """
    try:
        numbers = [one for one in os.listdir(model_directory) if one.isascii() and one.isdigit()]
        versions = [one for one in numbers if os.path.isdir(model_directory / one)]
        if not versions:
            return frozenset()
        with os.scandir(model_directory / min(versions, key=int)) as entries:
            return frozenset(f"{entry.name}/" if os.path.isdir(entry) else entry.name for entry in entries)
    except OSError as error:
        reason = refusal_of(error, model_directory)
        raise UnreadableEntry(f"failed to open directory {model_directory}: {reason}") from error


def _config_file(model_directory: Path, config_name: str | None) -> Path:
    if config_name:
        custom = model_directory / "configs" / f"{config_name}.pbtxt"
        if _has_entry(custom):
            return custom
    return model_directory / CONFIG_FILE


def _has_entry(path: Path) -> bool:
    """Return whether the directory has such an entry. A link whose target is gone is one: the model has a
    configuration, which cannot be read now."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        reason = refusal_of(error, path.parent)
        raise UnreadableEntry(f"failed to open text file for read {path}: {reason}") from error
    return True


def _read(path: Path, name: str, may_be_missing: bool) -> pb.ModelConfig:
    if may_be_missing and not _has_entry(path):
        return pb.ModelConfig()
    # the model's and the file's name are enough to find it, and keep the reply free of the device's paths
    return parse_model_config(read_file(path, MOST_CONFIG_BYTES), f"{name}/{path.name}")


def _from_override(override: bytes | str) -> pb.ModelConfig:
    try:
        return model_config_from_json(override)
    except InvalidArgument as error:
        raise InvalidArgument(f"Invalid config override: {error.message}") from error
