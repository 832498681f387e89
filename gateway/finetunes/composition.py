"""Puts together what deals with finetunes. A part of the composition root.

`FinetuneReader` is made before the pool, whose nodes read through it, the rest behind it.
Read next: `gateway.finetunes.desk`, `gateway.finetunes.resolver`, `gateway.finetunes.reader`.
"""

from dataclasses import dataclass

from gateway.auth.principal_cache import PrincipalCache
from gateway.entry import Entry
from gateway.finetunes.bases import find_max_rank
from gateway.finetunes.desk import FinetuneDesk
from gateway.finetunes.reader import FinetuneReader
from gateway.finetunes.resolver import AdapterResolver
from gateway.finetunes.sweeper import PieceSweeper
from gateway.routing.fleet import Fleet
from gateway.settings import FinetuneSettings
from gateway.sources import Sources
from tenancy.finetunes.interface import FinetuneDirectory


@dataclass(frozen=True, slots=True)
class Finetunes:
    """The parts that deal with finetunes, but for the reader."""

    desk: FinetuneDesk
    resolver: AdapterResolver
    sweeper: PieceSweeper
    directory: FinetuneDirectory
    entry: Entry
    """Whose files may come in here."""


def create_reader(directory: FinetuneDirectory, cache: PrincipalCache) -> FinetuneReader:
    """What nodes get adapters' files from; it forgets with each epoch."""
    reader = FinetuneReader(directory)
    cache.add_follower(reader.forget)
    return reader


def create_finetunes(
    settings: FinetuneSettings,
    directory: FinetuneDirectory,
    cache: PrincipalCache,
    fleet: Fleet,
    entry: Entry,
    sources: Sources,
) -> Finetunes:
    """Nothing runs yet."""
    resolver = AdapterResolver(
        directory,
        lambda model: find_max_rank(fleet.roster.snapshots, model),
        lambda: cache.is_trusted,
        settings.max_cached,
    )
    sweeper = PieceSweeper(directory, settings.sweep_s)
    for refresh in (resolver.forget, sweeper.wake):
        cache.add_follower(refresh)
    desk = FinetuneDesk(
        settings, fleet.roster.find_model, lambda: fleet.roster.snapshots, sources.monotonic_s
    )
    return Finetunes(desk, resolver, sweeper, directory, entry)
