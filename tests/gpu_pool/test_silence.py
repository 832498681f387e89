"""What counts as silence."""

import pytest

from gpu_pool.silence import PingedSilence, Silence


def test_silence_is_owed_unheard_and_witnessed() -> None:
    silence = Silence(look_s=1.0)
    for _ in range(5):
        silence.look(1.1, 7, is_owed=True)
    assert silence.length_s == pytest.approx(4.4)  # the first look has heard seven words
    silence.look(60.0, 7, is_owed=True)  # this process has slept
    assert silence.length_s == pytest.approx(4.4)
    silence.look(1.0, 8, is_owed=True)
    assert silence.length_s == 0
    silence.look(1.0, 8, is_owed=True)
    silence.look(1.0, 8, is_owed=False)
    assert silence.length_s == 0


def test_a_ping_goes_out_when_a_word_has_come_and_none_before_it_is_answered() -> None:
    now_s, pings = [0.0], list[float]()
    silence = PingedSilence(1.0, lambda: pings.append(now_s[0]), lambda: now_s[0])
    lengths: list[float] = []
    for tenths in range(1, 60):
        now_s[0] = tenths / 10
        lengths.append(silence.look(num_heard=1 if tenths < 35 else 2))
    assert pings == [1.0, 4.0]
    assert lengths[8:34:10] == pytest.approx([0.0, 0.0, 1.0])
    assert max(lengths) == pytest.approx(2.0)
    assert lengths[-1] == pytest.approx(1.0)


@pytest.mark.parametrize("num_before", [0, 1])
def test_whoever_answers_each_ping_is_never_silent_whatever_it_said_before(num_before: int) -> None:
    """A word is owed once it was asked for: nobody says anything unasked."""
    now_s, pings = [0.0], list[float]()
    silence = PingedSilence(1.0, lambda: pings.append(now_s[0]), lambda: now_s[0])
    for tenths in range(1, 200):
        now_s[0] = tenths / 10
        num_answers = sum(ping_s < now_s[0] for ping_s in pings)
        assert silence.look(num_before + num_answers) == 0
    assert len(pings) == 19


def test_whoever_waits_wakes_for_the_next_look() -> None:
    now_s = [0.0]
    silence = PingedSilence(1.0, lambda: None, lambda: now_s[0])
    now_s[0] = 0.25
    assert (silence.bound(None), silence.bound(0.5), silence.bound(9.0)) == (0.75, 0.5, 0.75)
    now_s[0] = 7.0
    assert silence.bound(None) == 0.0
    silence.look(0)
    assert silence.bound(None) == 1.0
