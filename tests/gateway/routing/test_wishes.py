"""Headers can narrow what the account allows, and never widen it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import InvalidRequest, ResidencyViolation
from contracts.ids import RegionId
from gateway.routing.regions import Region, RegionCatalogue
from gateway.routing.wishes import NO_WISHES, Wishes, narrow, read_wishes

WEUR, ENAM, APAC = RegionId("weur"), RegionId("enam"), RegionId("apac")
REGIONS = st.sampled_from([WEUR, ENAM, APAC])


def test_headers_are_read_once_and_in_bounds() -> None:
    headers = [
        (b"x-session-affinity", b"agent-1" * 1000),
        (b"x-hearth-regions", b"weur, enam,,"),
        (b"x-hearth-jurisdictions", b"eu"),
        (b"x-hearth-explain", b"1"),
    ]
    wishes = read_wishes(headers)
    assert wishes.session is not None
    assert len(wishes.session) == 512
    assert (wishes.regions, wishes.jurisdictions) == ({WEUR, ENAM}, {"eu"})
    assert wishes.is_explained
    assert read_wishes([(b"accept", b"*/*")]) == NO_WISHES
    assert not read_wishes([(b"x-hearth-explain", b"0")]).is_explained


@pytest.mark.parametrize("value", [b"1", b"true"])
def test_who_asks_for_an_explanation_gets_one(value: bytes) -> None:
    assert read_wishes([(b"x-hearth-explain", value)]).is_explained


@pytest.mark.parametrize("value", [b"", b"0", b"false", b"no", b"off", b"False", b"2", b"1,1"])
def test_who_says_anything_else_gets_none(value: bytes) -> None:
    assert not read_wishes([(b"x-hearth-explain", value)]).is_explained


@pytest.mark.parametrize("name", [b"x-hearth-regions", b"x-hearth-jurisdictions"])
def test_a_list_is_taken_whole_or_not_at_all(name: bytes) -> None:
    fits = b"enam" + b"," * 508
    assert read_wishes([(name, fits)]) != NO_WISHES
    with pytest.raises(InvalidRequest, match="longer than 512 bytes"):
        read_wishes([(name, b"," * 508 + b"enam2")])  # cut, it would ask for another


@pytest.mark.parametrize("name", [b"x-hearth-regions", b"x-hearth-jurisdictions"])
def test_a_list_that_comes_twice_is_refused(name: bytes) -> None:
    """One of the two would be passed over, and with it the regions that somebody has asked for."""
    with pytest.raises(InvalidRequest, match="more than once"):
        read_wishes([(name, b"weur"), (b"accept", b"*/*"), (name, b"enam")])
    twice = [(b"x-session-affinity", b"a"), (name, b"weur"), (b"x-session-affinity", b"b")]
    assert read_wishes(twice).session == b"b"  # the control: what narrows nothing may


@pytest.mark.parametrize(
    ("name", "value", "fault"),
    [
        (
            b"x-hearth-regions",
            b"weur;enam",
            "`weur;enam` is not a region's name: it takes up to 63 letters",
        ),
        (
            b"x-hearth-regions",
            b"weur enam",
            "`weur enam` is not a region's name: it takes up to 63 letters",
        ),
        (b"x-hearth-regions", b"weur,any", "No region is called `any`"),
        (b"x-hearth-regions", b"", "There is no name in the list."),
        (b"x-hearth-regions", b" , ", "There is no name in the list."),
        (
            b"x-hearth-regions",
            b"w\xe9\x7f\t1",
            "`w\ufffd\ufffd\ufffd1` is not a region's name: it takes up to 63 letters",
        ),
        (b"x-hearth-jurisdictions", b"EU", "`EU` names no jurisdiction: it takes up to 63 lower"),
        (b"x-hearth-jurisdictions", b"eu;us", "`eu;us` names no jurisdiction"),
        (b"x-hearth-jurisdictions", b"none", "No jurisdiction is called `none`"),
        (b"x-hearth-jurisdictions", b"", "There is no name in the list."),
    ],
)
def test_a_list_that_names_no_places_is_refused_with_its_form(
    name: bytes, value: bytes, fault: str
) -> None:
    form = "`weur,enam`" if name == b"x-hearth-regions" else "`eu,us`"
    with pytest.raises(InvalidRequest) as refused:
        read_wishes([(name, value)])
    message = refused.value.message
    assert message.startswith(f"`{name.decode()}` takes ")
    assert f"separated by commas, such as {form}. {fault}" in message
    with pytest.raises(InvalidRequest) as refused:
        read_wishes([(name, b"x" * 512)])
    assert len(refused.value.message) < 400
    assert read_wishes([(name, b" weur ,enam,")]) == read_wishes([(name, b"enam,weur")])


@given(
    allowed=st.none() | st.lists(REGIONS, max_size=3),
    regions=st.none() | st.frozensets(REGIONS),
    lying_there=st.frozensets(REGIONS),
    has_jurisdictions=st.booleans(),
)
def test_a_wish_never_opens_a_region(
    allowed: list[RegionId] | None,
    regions: frozenset[RegionId] | None,
    lying_there: frozenset[RegionId],
    has_jurisdictions: bool,
) -> None:
    wishes = Wishes(None, regions, frozenset({"eu"}) if has_jurisdictions else None)
    left = narrow(allowed, wishes, lying_there)
    for region in (WEUR, ENAM, APAC):
        may = allowed is None or region in allowed
        may = may and (regions is None or region in regions)
        may = may and (not has_jurisdictions or region in lying_there)
        assert (left is None or region in left) == may


def test_who_may_not_enter_is_told_where_to_go() -> None:
    regions = {ENAM: Region("us", 0.1, "https://enam.example.com")}
    catalogue = RegionCatalogue(WEUR, regions)
    for allowed in (None, [WEUR], [ENAM, WEUR]):
        catalogue.require_entry(allowed)
    with pytest.raises(ResidencyViolation, match=r"Send them to https://enam\.example\.com\."):
        catalogue.require_entry([ENAM, APAC])
    with pytest.raises(ResidencyViolation) as caught:
        catalogue.require_entry([])
    assert "Send" not in caught.value.message
