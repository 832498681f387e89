"""An engine core whose steps take the time of a card: the production scheduler, no tensors.

Owns the executor's part: positions of the rows, invented tokens, the time of each step.
"""

from benchmarks.split.card import Card
from benchmarks.split.hand_over import TimedSource
from contracts.fleet import ModelCard, ModelLoad, NodeReport
from contracts.ids import BootId, ModelName, NodeId, RegionId
from contracts.kv_transfer import KvEndpoint
from contracts.node_roles import NodeRole
from gpu_pool.engine.assembly import Carriers, create_scheduler
from gpu_pool.engine.messages import AddSequence, StepOutput
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.plan import (
    ExecutorInfo,
    ForwardPlan,
    ForwardResult,
    KvGroup,
    KvGroupKind,
    SampledTokens,
    SequenceId,
)

MODEL = ModelName("@hearth/simulated")
REGION = RegionId("here")
_CARD = ModelCard(name=MODEL, revision="r1", task="", description="", context_window=1 << 17)


class SimulatedCore:
    """One node with one model."""

    def __init__(
        self,
        node_id: NodeId,
        role: NodeRole,
        card: Card,
        settings: SchedulerSettings,
        source: TimedSource,
    ) -> None:
        """Nothing to do yet; `source` brings what others have computed."""
        self.node_id = node_id
        self.role = role
        self._card = card
        block_bytes = int(card.kv_bytes) * card.block_size
        group = KvGroup(KvGroupKind.FULL, 32, block_bytes, num_host_blocks=card.num_blocks)
        self._info = ExecutorInfo(
            kv_groups=(group,),
            block_size=card.block_size,
            num_blocks=card.num_blocks,
            context_window=card.context_window,
            vocab_size=card.context_window,
            eos_token_ids=(0,),
            model_revision="r1",
            kv_dtype="bfloat16",
            max_in_flight=1,
        )
        self.scheduler = create_scheduler(
            settings, self._info, lambda: 1, carriers=Carriers(sources=(source,))
        )
        self._positions: dict[SequenceId, int] = {}
        self._endpoint = KvEndpoint(
            model=MODEL,
            engine="simulated",
            incarnation="1",
            layout="1",
            block_size=card.block_size,
            bytes_per_token=int(card.kv_bytes),
        )
        self._plan: ForwardPlan | None = None
        self._step_s = 0.0
        self.busy_s = 0.0
        """Time spent in steps."""

    @property
    def is_stepping(self) -> bool:
        """A step is under way."""
        return self._plan is not None

    def add(self, request: AddSequence) -> None:
        """A sequence arrives."""
        self.scheduler.add(request)

    def begin_step(self, now_s: float) -> float | None:
        """When the next step will be over; None when there is nothing to do."""
        plan = self.scheduler.schedule(int(now_s * 1000))
        if plan is None:
            return None
        for sequence_id in plan.released:
            self._positions.pop(sequence_id, None)
        for row in plan.new:
            self._positions[row.sequence_id] = row.num_computed_tokens
        pieces: list[tuple[int, int]] = []
        for work in plan.scheduled:
            before = self._positions[work.sequence_id]
            pieces.append((work.num_tokens, before))
            self._positions[work.sequence_id] = before + work.num_tokens
        self._step_s = self._card.measure_step_s(pieces)
        self.busy_s += self._step_s
        self._plan = plan
        return now_s + self._step_s

    def end_step(self) -> StepOutput | None:
        """What the step brought."""
        plan, self._plan = self._plan, None
        assert plan is not None, "no step is under way"
        sampled = tuple(
            SampledTokens(work.sequence_id, (1,)) for work in plan.scheduled if work.samples
        )
        self.scheduler.note_step(self._step_s)
        self.scheduler.update(ForwardResult(plan.step, sampled))
        return self.scheduler.take_output()

    def report(self) -> NodeReport:
        """What the node says of itself."""
        load = self.scheduler.load
        return NodeReport(
            node_id=self.node_id,
            boot_id=BootId("1"),
            region=REGION,
            jurisdiction="",
            is_draining=False,
            models=(_CARD,),
            loads=(
                ModelLoad(
                    name=MODEL,
                    is_ready=True,
                    num_running=load.num_running,
                    num_waiting=load.num_waiting,
                    num_blocks=load.num_blocks,
                    num_free_blocks=load.num_free_blocks,
                    block_size=self._card.block_size,
                    num_queued_tokens=load.num_queued_tokens,
                    num_coming=load.num_coming,
                    prefill_tokens_per_s=load.prefill_per_s,
                    decode_tokens_per_s=load.decode_per_s,
                    decode_step_s=load.decode_step_s,
                ),
            ),
            role=self.role,
            kv_endpoints=(self._endpoint,),
        )
