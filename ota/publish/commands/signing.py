"""`request`, `sign`, `collect`: exchange signatures with machines without a network."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ota.errors import OtaError, UsageError
from ota.publish.commands import Subcommands, add, add_token_flags, confirm, open_workspace, print_result, secrets_of

if TYPE_CHECKING:
    from securesystemslib.signer import Signer


def add_parsers(subcommands: Subcommands) -> None:
    """Add the subcommands."""
    request = add(
        subcommands, "request", _request, "write the change that waits as a file for the signers", publishes=False
    )
    request.add_argument("--out", type=Path, default=Path("request.json"), metavar="FILE")
    request.add_argument("--discard", action="store_true", help="drop the change that waits")

    sign = add(subcommands, "sign", _sign, "show a request, and sign it; needs no network", workspace=False)
    sign.add_argument("request", type=Path, metavar="FILE")
    sign.add_argument(
        "--key", type=Path, action="append", default=[], metavar="FILE", help="a private key (repeatable)"
    )
    sign.add_argument(
        "--root", type=Path, metavar="FILE", help="a root.json that you trust; needed if the key has no memory of one"
    )
    sign.add_argument("--out", type=Path, metavar="FILE", help="default: beside the request, named after the key")
    sign.add_argument("--yes", action="store_true", help="sign without a question")
    add_token_flags(sign, existing=False)

    collect = add(subcommands, "collect", _collect, "put signatures into the change that waits; publish it when enough")
    collect.add_argument("files", type=Path, nargs="*", metavar="FILE")


def _request(arguments: argparse.Namespace) -> int:
    from ota import files
    from ota.publish.ceremony import write_request

    with open_workspace(arguments, first=True) as (workspace, state):
        if arguments.discard:
            if not state.roots:
                raise UsageError(
                    "the first change of a repository is not dropped, because no command but init makes it: "
                    "sign it, or begin again with 'edge-ota publish init' in a new directory"
                )
            if not workspace.pending.exists():
                raise UsageError("no change waits for signatures")
            files.unlink(workspace.pending)
            print("dropped: the change that waited")
            return 0
        request = write_request(workspace, state, arguments.out, time.time())
        print("\n".join(request.words()))
        print(f"{arguments.out}: carry it to the keys; there: 'edge-ota publish sign {arguments.out.name}'")
    return 0


def _sign(arguments: argparse.Namespace) -> int:
    from ota import files
    from ota.publish import ceremony, memory

    expected = "a file that 'edge-ota publish request' wrote"
    data = files.read_given(arguments.request, expected, ceremony.MOST_REQUEST)
    request = ceremony.read_request(data, str(arguments.request))
    memories = [path.with_name(f"{path.stem}.signed.json") for path in arguments.key]
    known = [memory.read_memory(path) for path in memories]
    doubts = memory.find_doubts(request, [*known, *_trusted_roots(arguments)])
    print("\n".join([*request.words(doubts.roles), *doubts.notes]), flush=True)
    if not confirm("Sign this?", arguments.yes):
        raise OtaError("nothing was signed")
    signed, roles = ceremony.sign(request, _signers(arguments))
    for path, before in zip(memories, known, strict=True):
        memory.write_memory(path, request, before, roles)
    first = arguments.key[0].stem if arguments.key else f"{arguments.token}-{arguments.token_id}"
    out = arguments.out or arguments.request.with_name(f"{arguments.request.stem}.{first}.sig.json")
    files.write_durably(out, signed)
    print(f"{out}: signatures for {', '.join(roles)}; carry it back, and give it to 'edge-ota publish collect'")
    return 0


def _trusted_roots(arguments: argparse.Namespace) -> list[dict[str, str]]:
    from ota import files
    from ota.publish.memory import memory_of_root

    if arguments.root is None:
        return []
    data = files.read_given(arguments.root, "a root.json of the repository")
    return [memory_of_root(data, str(arguments.root))]


def _signers(arguments: argparse.Namespace) -> list[Signer]:
    from ota.publish.keys import TokenSigner, import_from_token, read_private

    secrets = secrets_of(arguments)
    signers: list[Signer] = [read_private(path, path.stem, secrets) for path in arguments.key]
    if arguments.pkcs11:
        name = f"{arguments.token}-{arguments.token_id}"
        place = import_from_token(arguments.pkcs11, arguments.token, arguments.token_id, name, secrets)
        signers.append(TokenSigner(place, secrets))
    if not signers:
        raise UsageError("no key to sign with: give --key FILE, or --pkcs11 LIBRARY --token LABEL")
    return signers


def _collect(arguments: argparse.Namespace) -> int:
    from ota import files
    from ota.publish.ceremony import collect

    expected = "a file that 'edge-ota publish sign' wrote"
    found = [(str(path), files.read_given(path, expected)) for path in arguments.files]
    with open_workspace(arguments, first=True) as (workspace, state):
        waiting = collect(workspace, state, found, time.time())
        return print_result(
            workspace, waiting, f"published: the change that waited; a web server serves {workspace.repository}"
        )
