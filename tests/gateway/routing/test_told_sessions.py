"""Sessions that came in through another gateway: nodes tell, and the law is as it was."""

import msgspec

from contracts.grant import RetentionClass
from contracts.ids import ModelName, NodeId, RegionId
from contracts.inference import ChatMessage, ChatPrompt, GenerateRequest, SamplingParams, TextPrompt
from gateway.routing.fleet import Fleet
from gateway.routing.rings import NO_RINGS
from gateway.routing.route_plan import Pick, RouteNeed
from gateway.sources import Sources
from tests.gateway.routing.fleet_words import MODEL, create_fleet, create_report

SALT = b"s" * 32
LONG = "Find out why it fails. " * 20
SESSION = 2**63 + 7
NODES = [f"n{place}" for place in range(4)]
NEED = RouteNeed(
    MODEL, None, prefix_keys=(1, 2), num_prompt_bytes=512, num_prompt_tokens=128, session=SESSION
)


def create_gateway() -> Fleet:
    """A gateway that sees four nodes alike."""
    fleet = create_fleet(*NODES, sources=Sources(lambda: 1.0, lambda: 1.0, lambda _: 0))
    for node_id in NODES:
        fleet.record_report(create_report(node_id))
    return fleet


def tell(fleet: Fleet, node_id: str, *sessions: int, region: str = "weur") -> None:
    """The node reports that these sessions have just been there."""
    fleet.record_report(msgspec.structs.replace(create_report(node_id, region), sessions=sessions))


def test_a_turn_goes_where_another_gateway_sent_the_one_before() -> None:
    fleet = create_gateway()
    fleet.plan(msgspec.structs.replace(NEED, session=1))  # somebody has the prompt's beginning
    for node_id in NODES:
        tell(fleet, node_id, SESSION)
        plan = fleet.plan(NEED)
        fleet.release(plan)
        assert (plan.node_id, plan.pick) == (node_id, Pick.SESSION)
        fleet = create_gateway()
        fleet.plan(msgspec.structs.replace(NEED, session=1))
    untold = {create_gateway().plan(msgspec.structs.replace(NEED, session=9)).node_id}
    assert len(untold) == 1  # the control: without a word it is the same one each time


def test_a_node_that_names_a_session_brings_it_nowhere_it_may_not_be() -> None:
    fleet = create_fleet(*NODES, "abroad", sources=Sources(lambda: 1.0, lambda: 1.0, lambda _: 0))
    for node_id in NODES:
        fleet.record_report(create_report(node_id))
    tell(fleet, "abroad", SESSION, region="enam")
    fleet.plan(msgspec.structs.replace(NEED, session=1))
    bound = msgspec.structs.replace(NEED, allowed_regions=(RegionId("weur"),))
    assert fleet.locality.find_hints(bound, NO_RINGS, {}, 1.0).pinned == "abroad"
    assert fleet.plan(bound).region == "weur"


def test_without_the_law_the_session_would_be_kept_there() -> None:
    """The control of the one before."""
    fleet = create_fleet(*NODES, "abroad", sources=Sources(lambda: 1.0, lambda: 1.0, lambda _: 0))
    for node_id in NODES:
        fleet.record_report(create_report(node_id))
    tell(fleet, "abroad", SESSION, region="enam")
    plan = fleet.plan(NEED)
    assert (plan.node_id, plan.pick) == ("abroad", Pick.SESSION)


def test_one_gateways_own_word_is_not_undone_by_an_older_one() -> None:
    fleet = create_gateway()
    first = fleet.plan(NEED)
    other = next(node_id for node_id in NODES if node_id != first.node_id)
    tell(fleet, other, SESSION)
    assert fleet.plan(NEED).node_id == first.node_id


def describe(prompt: ChatPrompt | TextPrompt, **facts: object) -> RouteNeed:
    """What a gateway makes of a request."""
    retention = facts.get("retention", RetentionClass.STANDARD)
    session = facts.get("session")
    assert isinstance(retention, RetentionClass)
    assert session is None or isinstance(session, bytes)
    request = GenerateRequest(model=MODEL, prompt=prompt, sampling=SamplingParams())
    return create_gateway().locality.describe(request, None, SALT, retention, session)


def test_a_conversation_without_a_name_is_a_session_all_the_same() -> None:
    turns = [ChatMessage(role="user", content=LONG), ChatMessage(role="assistant", content="Yes?")]
    chat = ChatPrompt(messages=tuple(turns))
    longer = ChatPrompt(messages=(*turns, ChatMessage(role="user", content="Go on.")))
    assert describe(chat).session is not None
    assert describe(chat).session == describe(longer).session
    named = describe(chat, session=b"mine").session
    assert named not in (None, describe(chat).session)  # the client's word comes first
    assert describe(TextPrompt(text=LONG)).session is None  # nothing tells one text from another
    short = ChatPrompt(messages=(ChatMessage(role="user", content="Hi"),))
    assert describe(short).session is None  # its cache is worth nothing: let it go anywhere
    assert describe(chat, retention=RetentionClass.NONE).session is None
    assert describe(chat, retention=RetentionClass.NONE, session=b"mine").session == named


def test_a_session_is_one_of_its_model_alone() -> None:
    chat = ChatPrompt(messages=(ChatMessage(role="user", content=LONG),))
    request = GenerateRequest(model=MODEL, prompt=chat, sampling=SamplingParams())
    other = msgspec.structs.replace(request, model=ModelName("@hearth/tests/other"))
    locality = create_gateway().locality
    needs = [
        locality.describe(one, None, SALT, RetentionClass.STANDARD, session)
        for one in (request, other)
        for session in (None, b"mine")
    ]
    assert len({need.session for need in needs}) == 4
    assert {node.node_id for node in create_gateway().roster.snapshots} == {
        NodeId(n) for n in NODES
    }
