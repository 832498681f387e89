"""Hot standby's settings: every option, its default and its bounds.

Owns names, defaults and ranges; must not know files or the environment, which commands read
(overrides: `HEARTH_STANDBY__SECTION__FIELD`). Each component gets its own section only.
Read next: `hot_standby.placement_planner`, `contracts.settings`.
"""

from pathlib import Path
from typing import Annotated, Final

import msgspec

from contracts.ids import ModelName
from contracts.placement import ServiceClass
from contracts.sections import LogSettings
from contracts.settings import Secret, require_distinct

PREFIX: Final = "HEARTH_STANDBY"
Seconds = Annotated[float, msgspec.Meta(gt=0)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Rate = Annotated[float, msgspec.Meta(gt=0)]


class DemandSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How far ahead demand is foretold, and how long it is remembered. Units: seconds."""

    patience_s: Seconds = 60.0
    """What is further off counts for little on a device: about as long as a model stays there."""
    host_patience_s: Seconds = 1800.0
    """The same for the host's memory."""
    half_life_s: Seconds = 7200.0
    """After so long, what was seen of pauses weighs half."""


class PlannerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the planner weighs. Units: seconds, shares."""

    hysteresis: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.25
    """By how much another must be worth more than a model that is near, to take its place."""
    prewarm_at: Share = 0.5
    """How imminent a request must be for its model to come to the device before it."""
    prewarm_host_at: Share = 0.1
    """The same for the host's memory."""
    requests_per_replica: Count = 16
    """With more than so many in flight for each, another replica is started."""
    calm_share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
    """Below this share of them the last replica may go."""
    preference_s: Annotated[float, msgspec.Meta(ge=0, le=60)] = 0.5
    """The wait that being served elsewhere than an account prefers counts for: more than the way to
    most regions, less than a model takes from the disk. 0: preferences count for nothing."""


class MoveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How fast weights are taken to move, until nodes say better. Units: bytes/s, seconds."""

    host_per_s: Rate = 8e9
    disk_per_s: Rate = 1.5e9
    remote_per_s: Rate = 1e8
    disk_start_s: Annotated[float, msgspec.Meta(ge=0)] = 1.5


class RoleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """When nodes whose settings have `roles` should change theirs. Units: seconds, shares."""

    carry_out: bool = False
    """True: nodes are given the role that is thought better; False: it is suggested."""
    window_s: Seconds = 60.0
    """Loads are averaged over about so long."""
    sustained_s: Seconds = 120.0
    """How long a change must have seemed right."""
    pause_s: Seconds = 300.0
    """Between two changes in one pool: what a node has under way has to end."""
    relief_s: Seconds = 10.0
    """Both, where answers wait for places: a node that is turned to them serves them at once."""
    margin: Annotated[float, msgspec.Meta(ge=0.05, le=0.95)] = 0.25
    """By what share the fuller half must have less to do per node."""
    busy_at: Annotated[float, msgspec.Meta(gt=0, le=2)] = 0.5
    """The load per node of the fuller half below which nothing is changed; 1 is a full node."""


class GatewayAddress(msgspec.Struct, frozen=True, kw_only=True):
    """One gateway's operators' port."""

    url: str
    """Such as `http://127.0.0.1:8788`."""
    ca_file: Path | None = None
    """Trusted issuers of its certificate; None means the system's."""

    def __post_init__(self) -> None:
        """Raises: `ValueError` for what is no origin."""
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"`{self.url}` is not an address such as http://127.0.0.1:8788.")


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What one model is promised."""

    name: ModelName
    service_class: ServiceClass


class StandbySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything hot standby can be told."""

    gateways: tuple[GatewayAddress, ...] = (GatewayAddress(url="http://127.0.0.1:8788"),)
    operator_token: Secret = Secret("")
    """An operator's credential."""
    period_s: Annotated[float, msgspec.Meta(ge=0.05, le=60)] = 1.0
    """How often the fleet is read and planned for."""
    timeout_s: Seconds = 5.0
    """How long a gateway may take to answer."""
    max_report_age_s: Seconds = 10.0
    """Nodes that nobody has heard of for so long are left alone."""
    state_file: Path | None = Path(".hearth/standby.json")
    """Where the profile of days outlives the process; None keeps none."""
    alive_file: Path | None = None
    """Touched after each round in which a gateway has answered: what a health check looks at."""
    demand: DemandSettings = DemandSettings()
    planner: PlannerSettings = PlannerSettings()
    moves: MoveSettings = MoveSettings()
    roles: RoleSettings = RoleSettings()
    models: tuple[ModelSettings, ...] = ()
    log: LogSettings = LogSettings()

    def __post_init__(self) -> None:
        """Raises: `ValueError` without a gateway, or for a model that is named twice."""
        if not self.gateways:
            raise ValueError("`gateways` names none.")
        require_distinct("The model", (model.name for model in self.models))
