"""Whose law holds in which region, by the catalogue's word and by the nodes'.

Owns the rule for regions that are spoken of differently: they lie in a jurisdiction only for those
to whom all that is said of them is the same. Read next: `gateway.routing.region_policy`.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import structlog

from contracts.ids import NodeId, RegionId
from contracts.region_rules import EntryPlace
from gateway.routing.regions import RegionCatalogue

log = structlog.get_logger(__name__)
_MAX_ANSWERS: Final = 256
"""Sets of jurisdictions whose regions are remembered; clients can make any up."""
_SHOWN: Final = 64
"""Characters of what a node says that a line of the log repeats."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """What is known of a set of jurisdictions."""

    lawful: frozenset[RegionId]
    """Regions that lie there, and nobody says otherwise."""
    disputed: frozenset[RegionId]
    """Of these some say so, and some do not."""


class LawTable:
    """One gateway's view."""

    def __init__(self, catalogue: RegionCatalogue) -> None:
        """No node has said anything yet."""
        self.catalogue: Final = catalogue
        self._words: dict[NodeId, tuple[RegionId, str]] = {}
        self._said = {region: Counter((law,)) for region, law in catalogue.list_jurisdictions()}
        """Of each region, how many say what."""
        self._answers: dict[frozenset[str], _Answer] = {}
        self.version = 0
        """Another one after each change of what is said of any region."""

    def note(self, node_id: NodeId, region: RegionId, jurisdiction: str) -> None:
        """The node stands in `region`, where `jurisdiction` holds, as it or operators say."""
        word = region, jurisdiction
        if self._words.get(node_id) == word:
            return
        self.forget(node_id)
        self._words[node_id] = word
        held = self._said.setdefault(region, Counter())
        if jurisdiction not in held:
            self._note_change()
            if held:
                said = sorted(law[:_SHOWN] for law in (*held, jurisdiction))
                log.warning("law_disputed", region=region[:_SHOWN], said=said)
        held[jurisdiction] += 1

    def forget(self, node_id: NodeId) -> None:
        """Nothing the node has said counts any more."""
        word = self._words.pop(node_id, None)
        if word is None:
            return
        region, law = word
        held = self._said[region]
        held[law] -= 1
        if not held[law]:
            del held[law]
            self._note_change()
        if not held:
            del self._said[region]

    def list_known(self) -> Collection[RegionId]:
        """All regions of which somebody has spoken."""
        return self._said.keys()

    def list_regions(self, jurisdictions: Collection[str]) -> frozenset[RegionId]:
        """Regions that are known to lie in `jurisdictions`, and of which nobody says otherwise:
        whoever is kept to them may go to any node there.
        """
        return self._answer(frozenset(jurisdictions)).lawful

    def list_disputed(self, jurisdictions: Collection[str]) -> frozenset[RegionId]:
        """Regions that lie in `jurisdictions` as some say, and elsewhere as others do: nobody who
        is kept to them may go there until operators or nodes have mended that.
        """
        return self._answer(frozenset(jurisdictions)).disputed

    def describe_entry(self, region: RegionId) -> EntryPlace:
        """What is known of the place where requests enter."""
        return EntryPlace(region, frozenset(self._said.get(region, ())))

    def _note_change(self) -> None:
        """No answer of before holds any more."""
        self._answers.clear()
        self.version += 1

    def _answer(self, wanted: frozenset[str]) -> _Answer:
        """What is known of `wanted`."""
        found = self._answers.get(wanted)
        if found is None:
            inside = {region for region, held in self._said.items() if held.keys() & wanted}
            lawful = frozenset(region for region in inside if self._said[region].keys() <= wanted)
            found = _Answer(lawful, frozenset(inside - lawful))
            if len(self._answers) >= _MAX_ANSWERS:
                self._answers.clear()
            self._answers[wanted] = found
        return found
