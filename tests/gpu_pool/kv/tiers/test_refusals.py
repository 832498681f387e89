"""A drive that refuses is asked again now and then, and used once it takes a block."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from gpu_pool.kv.tiers.block_file import PAGE_BYTES
from gpu_pool.kv.tiers.file_tier import FileTier
from gpu_pool.kv.tiers.measured_tier import MeasuredTier
from gpu_pool.kv.tiers.settings import FileTierSettings
from tests.gpu_pool.kv.tiers.blocks import LAYOUT, blank, create_space, fill, name_blocks
from tests.gpu_pool.kv.tiers.test_file_tier import STORED, list_files


@contextmanager
def refuse_writes() -> Iterator[None]:
    """As a full drive does: files begin, and fail in the middle."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (PAGE_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_drive_that_takes_blocks_again_is_found_out_by_one_now_and_then(tmp_path: Path) -> None:
    """Each try takes one write and one line, and the next one is later, ten minutes at most."""
    space, now_s, writes = create_space(), 0.0, list[float]()
    (known, *names) = name_blocks(space, 2000)
    settings = FileTierSettings(path=tmp_path, max_bytes=10_000 * STORED)
    files = FileTier(settings, "model", LAYOUT, lambda: now_s)
    with structlog.testing.capture_logs() as lines:
        tier = MeasuredTier("file", files, 8, lambda: now_s)
        assert files.keep(space, known, fill(0))
        with refuse_writes():
            for name in names[:1700]:
                if tier.wants(space, name):
                    assert not files.keep(space, name, fill(1))
                    writes.append(now_s)
                assert tier.describe().is_off
                assert files.fetch(space, known, blank()), "what is there can be read"
                now_s += 1.0
        assert writes == [0.0, 10.0, 40.0, 130.0, 400.0, 1000.0, 1600.0]
        assert len(lines) == len(writes)
        last = names[-1]
        assert not tier.wants(space, last), "the control: there is room, and nobody has looked yet"
        assert not files.keep(space, last, fill(2))
        now_s = 2200.0
        assert tier.wants(space, last)
        assert files.keep(space, last, fill(2))
        assert not tier.describe().is_off
        assert len(lines) == len(writes) + 1
        assert tier.wants(space, names[0])
        assert files.keep(space, names[0], fill(3))
        assert len(list_files(tmp_path)) == 3, "no half remains"
        with refuse_writes():  # again at once: it goes on as before
            assert not files.keep(space, names[1], fill(1))
        now_s += 599
        assert not tier.wants(space, names[1])
        now_s += 1
        assert files.keep(space, names[1], fill(1))
        now_s += 700
        with refuse_writes():  # long after: another trouble
            assert not files.keep(space, names[2], fill(1))
        now_s += 10
        assert files.keep(space, names[2], fill(1))
        tier.close(1.0)
        assert not files.keep(space, names[3], fill(1))
        assert not tier.wants(space, names[3]), "what is closed stays so"
