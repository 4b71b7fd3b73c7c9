"""Creates the real components from the settings. Imports heavy libraries only when a command needs them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ota.agent.components import Components, LocalComponents
from ota.agent.operator.printer import ProgressPrinter
from ota.agent.system.state import open_layout
from ota.clock import SystemClock
from ota.errors import UsageError
from ota.fetch.blobs import BlobFetcher
from ota.fetch.mirrors import open_sources
from ota.settings import AgentSettings
from ota.source import RepositorySource


def open_components(settings: AgentSettings, *, by_hand: bool, directory: Path | None = None) -> Components:
    """Return the components of a run.

    Args:
        by_hand: an operator asked: download hours and metered links do not count.
        directory: a copy of the repository, in place of the web servers.

    Raises:
        UsageError: this device is not set up; with what is missing.
        StoreError: the state cannot be read.
        FetchError: the directory has no repository.
    """
    try:
        return _components(settings, directory, by_hand=by_hand)
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in ("tuf", "securesystemslib", "cryptography", "urllib3"):
            raise UsageError(f"{error.name} is not installed: pip install 'edge-serve[ota]'") from None
        raise


def open_local_components(settings: AgentSettings) -> LocalComponents:
    """Return the components of a command that needs no repository. No setting of the repository, key, or root counts.

    Times are those of the system's clock, because the clock floor may be unreadable.
    """
    from ota.agent.device.facts import ThisHardware
    from ota.server.admin_client import AdminClient

    return LocalComponents(
        layout=open_layout(settings),
        settings=settings,
        clock=SystemClock(),
        device=ThisHardware(settings),
        server=AdminClient(settings.admin_socket),
        tell=ProgressPrinter(),
    )


def _components(settings: AgentSettings, directory: Path | None, *, by_hand: bool) -> Components:
    from ota.agent.device.facts import ThisDevice
    from ota.agent.device.identity import open_identity, public_identity
    from ota.agent.plan_builder import PlanBuilder
    from ota.agent.probation import StatusProbation
    from ota.fetch.directory import DirectorySource
    from ota.server.admin_client import AdminClient
    from ota.server.build import UnitBuild
    from ota.server.trial import UnitTrial
    from ota.trust import clock_floor
    from ota.trust.expiry import ExpiryCheckedTrust
    from ota.trust.floors import Floors
    from ota.trust.roots import factory_root

    root = factory_root(settings.root)
    layout, system, tell = open_layout(settings), SystemClock(), ProgressPrinter()
    sources: list[RepositorySource] = [DirectorySource(directory)] if directory else open_sources(settings)
    limits = replace(settings, rate_limit=0) if directory else settings  # the limit is for the network
    floors = Floors([layout.floors, settings.floor_copy])
    certain = directory is not None or clock_floor.is_synchronized()  # an operator at the device can check the clock
    clock = clock_floor.open_clock(system, floors, layout.clock)
    if clock_floor.judge(system.now(), floors, certain).unset:
        tell(clock_floor.UNSET)
    grace = settings.allow_expired_days * 86400 if directory else 0.0
    if grace:
        tell(f"metadata that expired up to {settings.allow_expired_days:g} days ago is accepted (ALLOW_EXPIRED_DAYS)")
    trust = ExpiryCheckedTrust(layout.metadata, root, sources, floors, system, certain=certain, grace=grace)
    server = AdminClient(settings.admin_socket)
    known, public_key = public_identity(layout.identity)
    device = ThisDevice(settings, open_identity(settings, layout.identity))
    if known != device.identity.fingerprint:
        tell(f"this device is {device.name}, with the new key {device.identity.fingerprint} (public: {public_key})")
    builds = UnitBuild(settings.build_socket, settings.edge_serve, layout.plans / "made")
    return Components(
        layout=layout,
        settings=settings,
        clock=clock,
        trust=trust,
        fetcher=BlobFetcher(limits, layout, sources, clock, apply=by_hand),
        device=device,
        trial=UnitTrial(settings.trial_socket, settings.edge_serve),
        builder=PlanBuilder(layout, builds, device.facts),
        server=server,
        probation=StatusProbation(server, settings),
        tell=tell,
    )
