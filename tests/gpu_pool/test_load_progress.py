"""What is told of a load: seldom, never backwards in itself, and only what has happened."""

from gpu_pool.load_progress import LoadProgress, NobodyListens, find_progress, told_to


def test_progress_is_told_at_most_so_often() -> None:
    now_s = 0.0
    told: list[tuple[int, int]] = []
    progress = LoadProgress(lambda *words: told.append(words), lambda: now_s, every_s=1.0)
    progress.expect(100)
    assert told == []  # nothing has gone on yet
    for _ in range(30):
        progress.advance(2)
        now_s += 0.125
    assert told == [(2, 100), (18, 100), (34, 100), (50, 100)]


def test_what_has_no_bytes_is_a_sign_of_life() -> None:
    told: list[tuple[int, int]] = []
    progress = LoadProgress(lambda *words: told.append(words), lambda: 0.0, every_s=0.0)
    progress.advance(0)
    progress.advance(7)  # nobody had said that it would come
    assert told == [(0, 0), (7, 7)]


def test_the_last_is_told_at_the_end_unless_nothing_has_gone_on() -> None:
    told: list[tuple[int, int]] = []
    progress = LoadProgress(lambda *words: told.append(words), lambda: 0.0, every_s=1.0)
    progress.finish()
    assert told == []
    progress.expect(100)
    progress.advance(60)
    progress.advance(40)
    assert told == [(60, 100)]  # the control
    progress.finish()
    assert told == [(60, 100), (100, 100)]


def test_who_listens_is_a_matter_of_the_block() -> None:
    outer = LoadProgress(lambda *_: None, lambda: 0.0)
    inner = LoadProgress(lambda *_: None, lambda: 0.0)
    with told_to(outer):
        with told_to(inner):
            assert find_progress() is inner
        assert find_progress() is outer
    assert isinstance(find_progress(), NobodyListens)
