"""Names that stand for several sections."""

from benchmarks.gpu.script import GROUPS, expand
from benchmarks.gpu.sections import SECTIONS


def test_a_group_is_its_sections_and_each_is_run_once() -> None:
    assert expand(["wake", "standby", "kernels"]) == ["wake", "cycles", "load", "kernels"]


def test_groups_name_what_there_is() -> None:
    sections = {section.name for section in SECTIONS}
    assert sections.issuperset(name for group in GROUPS.values() for name in group)
    assert not sections & GROUPS.keys()
