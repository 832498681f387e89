"""What histories foretell: bursts, pauses, days, and what survives which restart."""

import math
from pathlib import Path

import pytest

from contracts.demand import NUM_GAP_BUCKETS, find_gap_bucket
from contracts.fleet_view import FleetView
from contracts.ids import BootId, GatewayId
from gateway.routing.demand import DemandRecorder
from hot_standby.demand import S_PER_DAY, SLOT_S, Demand, DemandBook
from hot_standby.settings import DemandSettings
from hot_standby.state_file import StateFile
from tests.hot_standby.fleet_words import WEUR, WNAM, name_model

MODEL = name_model("a")
DAY_S = 1_800_000_000 // S_PER_DAY * S_PER_DAY
SETTINGS = DemandSettings()


def view(recorder: DemandRecorder, now_s: float, boot: str = "b1") -> FleetView:
    """What the gateway tells."""
    return FleetView(
        gateway_id=GatewayId("g"),
        boot_id=BootId(boot),
        region=WEUR,
        unix_ms=round(now_s * 1000),
        nodes=(),
        demand=recorder.list_samples(),
        rules=(),
    )


def learn(times_s: list[float], now_s: float, step_s: float = 10.0) -> DemandBook:
    """A book that has seen arrivals at these times, polled every step."""
    book, recorder = DemandBook(SETTINGS), DemandRecorder()
    due = sorted(times_s)
    at_s = due[0] if due else now_s
    book.advance(at_s - 1)
    book.absorb(view(recorder, at_s - 1))
    while at_s <= now_s:
        while due and due[0] <= at_s:
            recorder.note(MODEL, None, round(due.pop(0) * 1000))
        book.advance(at_s)
        book.absorb(view(recorder, at_s))
        at_s += step_s
    return book


def foretell(book: DemandBook, now_s: float) -> Demand:
    """The only key's future."""
    (demand,) = book.foretell(now_s)
    return demand


def burst(at_s: float) -> list[float]:
    """Six requests, three seconds apart."""
    return [at_s + 3 * index for index in range(6)]


def test_a_gap_falls_into_the_bucket_of_its_order_of_magnitude() -> None:
    assert [find_gap_bucket(ms) for ms in (-5, 0, 1, 2, 3, 4, 1023, 1024)] == [
        *(0, 0, 1, 2, 2, 3, 10, 11)
    ]
    assert find_gap_bucket(1 << 60) == NUM_GAP_BUCKETS - 1


def test_within_a_burst_more_is_to_come_and_after_it_little() -> None:
    times = [at for k in range(20) for at in burst(DAY_S + 600 * k)]
    book = learn(times, max(times) + 5)
    end_s = max(times)
    inside, after = foretell(book, end_s + 1), foretell(book, end_s + 60)
    assert inside.imminence > 0.6
    assert after.imminence < 0.25
    assert inside.burst_per_s == pytest.approx(1 / 3, rel=0.3)
    assert inside.burst_length > 3


def test_a_regular_call_is_foreseen_when_its_time_comes() -> None:
    times = [DAY_S + 300.0 * k for k in range(30)]
    book = learn(times, max(times))
    early, late = (foretell(book, max(times) + idle).imminence for idle in (90.0, 290.0))
    assert late > 2 * early


def test_an_hour_of_the_day_that_brings_traffic_is_prepared_for() -> None:
    nine_s = 9 * 3600.0
    times = [DAY_S + day * S_PER_DAY + nine_s + 60 * k for day in range(4) for k in range(30)]
    book = learn(times, DAY_S + 4 * S_PER_DAY, step_s=300.0)
    day_s = DAY_S + 4 * S_PER_DAY
    night, morning = (foretell(book, day_s + at) for at in (3 * 3600.0, nine_s + 60))
    assert morning.imminence > 4 * night.imminence
    assert foretell(book, day_s + nine_s - 20).imminence > 4 * night.imminence  # ahead of it


def test_the_profile_of_days_outlives_the_process_and_gaps_come_again_from_the_gateway() -> None:
    times = [DAY_S + 300.0 * k for k in range(30)]
    book = learn(times, max(times))
    recorder = DemandRecorder()
    for at_s in times:
        recorder.note(MODEL, None, round(at_s * 1000))
    later = DemandBook(SETTINGS)
    later.load(book.dump())
    later.advance(max(times))
    later.absorb(view(recorder, max(times)))
    (_, before), (_, after) = book.dump()[0], later.dump()[0]
    assert after.starts_per_slot == before.starts_per_slot
    assert math.isclose(sum(after.gaps), len(times) - 1)
    assert after.starts_now == 0  # what came before this process belongs to no slot it knows


def test_a_gateway_that_starts_again_is_counted_from_zero_and_nothing_twice() -> None:
    book, recorder = DemandBook(SETTINGS), DemandRecorder()
    book.advance(DAY_S)
    for at_s in burst(DAY_S):
        recorder.note(MODEL, None, round(at_s * 1000))
    for _ in range(3):
        book.absorb(view(recorder, DAY_S + 20))
    again = DemandRecorder()
    for at_s in burst(DAY_S + 100):
        again.note(MODEL, None, round(at_s * 1000))
    book.absorb(view(again, DAY_S + 120, boot="b2"))
    ((_, history),) = book.dump()
    assert sum(history.gaps) == 10


def test_the_past_fades_and_slots_are_written_once() -> None:
    book = learn(burst(DAY_S), DAY_S + 20)
    book.advance(DAY_S + SETTINGS.half_life_s + 20)
    ((_, history),) = book.dump()
    assert sum(history.gaps) == pytest.approx(2.5, rel=0.02)
    assert sum(history.days_per_slot) == (SETTINGS.half_life_s + 20) // SLOT_S


def test_a_model_that_nobody_ever_asked_for_is_not_expected() -> None:
    book, recorder = DemandBook(SETTINGS), DemandRecorder()
    book.absorb(view(recorder, DAY_S))
    assert book.foretell(DAY_S) == ()


def test_beyond_its_bound_a_book_forgets_whoever_is_idle_longest() -> None:
    book, recorder = DemandBook(SETTINGS, max_keys=2), DemandRecorder()
    for place, letter in enumerate("abc"):
        recorder.note(name_model(letter), None, round((DAY_S + place) * 1000))
    book.absorb(view(recorder, DAY_S + 5))
    book.advance(DAY_S + 5)
    assert [key.model for key, _ in book.dump()] == [name_model("b"), name_model("c")]


def test_those_who_prefer_other_regions_are_foretold_by_themselves(tmp_path: Path) -> None:
    book, recorder = DemandBook(SETTINGS), DemandRecorder()
    for preferred in ((), (WNAM,), (WNAM, WEUR)):
        recorder.note(MODEL, None, round(DAY_S * 1000), preferred)
    book.advance(DAY_S)
    book.absorb(view(recorder, DAY_S))
    keys = [demand.key for demand in book.foretell(DAY_S)]
    assert [key.preferred for key in keys] == [(), (WEUR, WNAM), (WNAM,)]
    assert [key.has_rather(WEUR) for key in keys] == [False, False, True]
    file = StateFile(tmp_path / "days.json")
    file.write(book.dump())
    assert [key for key, _ in file.read()] == keys
    text = (tmp_path / "days.json").read_text().replace('"preferred"', '"unknown"')
    (tmp_path / "days.json").write_text(text)  # of a version before
    assert {key.preferred for key, _ in file.read()} == {()}
