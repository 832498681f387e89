"""Who leaves: in what order models make room, and who goes before anybody has to wait for it.

Pure. Holding a model costs nothing while nobody else wants the room; but whoever comes and finds
none waits until somebody has left. Read next: `hot_standby.placement_planner`.
"""

from contracts.ids import ModelName
from contracts.placement import Tier
from hot_standby.cost import CLASS_WEIGHTS, Standing
from hot_standby.draft import Draft
from hot_standby.fleet_state import NodeState
from hot_standby.tiers import NEARNESS


def order_eviction(draft: Draft, node: NodeState) -> tuple[ModelName, ...]:
    """The node's models that are or will be near, the first one to leave first."""
    names = [
        name
        for name, model in node.models.items()
        if min(NEARNESS[model.tier], NEARNESS[draft.tiers[node.node_id, name]])
        <= NEARNESS[Tier.HOST]
    ]
    return tuple(sorted(names, key=lambda name: (draft.worth[node.node_id, name], name)))


def send_ahead(draft: Draft, standing: Standing, node: NodeState) -> None:
    """Takes places on the device from models that are worth less than the wait for their leaving.

    The wait is that of every model which has no place here and would not find room, times how soon
    it is expected. Against it stands what the model is worth here, and what it costs whoever has to
    leave the host for it. Models that were placed for a reason (infinite worth) stay.
    """
    here = [name for name in node.models if draft.is_placed(node, name, Tier.GPU)]
    outside = [
        (_weigh_soon(standing, node, name, Tier.GPU), model.device_bytes)
        for name, model in node.models.items()
        if name not in here
    ]
    for name in sorted(here, key=lambda name: (draft.worth[node.node_id, name], name)):
        free = draft.get_device_free(node)
        crowded_out = sum(soon for soon, size in outside if size > free)
        size = node.models[name].device_bytes
        saved_s = crowded_out * node.speeds.estimate_wake_s(size, Tier.HOST)
        lost_s = draft.worth[node.node_id, name] * size
        if lost_s >= saved_s:
            return
        pushed = draft.list_pushed(node, name)
        lost_s += sum(_weigh_push(standing, node, other) for other in pushed)
        if lost_s < saved_s:
            draft.move_away(node, name)
            for other in pushed:
                del draft.near_worth[node.node_id, other]


def _weigh_soon(standing: Standing, node: NodeState, name: ModelName, tier: Tier) -> float:
    """How soon the model is expected, by its class and by the patience of `tier`."""
    weight = CLASS_WEIGHTS[node.models[name].service_class]
    return standing.find_imminence(node, name, tier) * weight


def _weigh_push(standing: Standing, node: NodeState, name: ModelName) -> float:
    """Seconds of expected waiting when the model has to leave the host, which it does for long."""
    size, speeds = node.models[name].weights_bytes, node.speeds
    more_s = speeds.estimate_wake_s(size, Tier.DISK) - speeds.estimate_wake_s(size, Tier.HOST)
    return _weigh_soon(standing, node, name, Tier.HOST) * more_s
