"""After every test here, whatever a rig still holds is given back, and nothing may be missing."""

from collections.abc import Iterator

import pytest

from tests.gpu_pool.engine.engine_rig import EngineRig, assert_no_leak


@pytest.fixture(autouse=True)
def no_leak(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Looks at every rig that the test has made."""
    rigs: list[EngineRig] = []
    create = EngineRig.__init__

    def note(rig: EngineRig, *args: object, **fields: object) -> None:
        create(rig, *args, **fields)  # type: ignore[arg-type]
        rigs.append(rig)

    monkeypatch.setattr(EngineRig, "__init__", note)
    yield
    for rig in rigs:
        assert_no_leak(rig)
