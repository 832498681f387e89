"""Two cores of which one process is killed at a random moment, and what a gateway says of it.

The host blocks that two accounts may have at the node that answers suffice for exactly one
`ask_all`, what the other one may keep for them as well: who has lost one cannot hand all of it
over. Each can reserve at once what one account may have. Read next: `core_pair` (the words that
are carried), `forked_core`.
"""

import hashlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import msgspec

from contracts.errors import DeadlineExceeded
from contracts.ids import AccountId
from contracts.kv_transfer import KvGaveUp, KvLanded, KvReserved
from gpu_pool.engine.messages import AbortSequence, KvArrival, ReleaseExport, StopImport
from gpu_pool.node_clock import read_node_ms
from gpu_pool.plan import SequenceId
from gpu_pool.transfer.puller import MOST_BATCH_TIMES
from tests.gpu_pool.engine.engine_rig import create_request
from tests.gpu_pool.models.family_checkpoint import SIZES, create_prompt
from tests.gpu_pool.transfer.core_pair import STEPS, Core, Split, create_transfer
from tests.gpu_pool.transfer.forked_core import ForkedCore

BLOCK_TOKENS: Final = 16
BLOCK_BYTES: Final = (
    SIZES["num_hidden_layers"] * 2 * SIZES["num_key_value_heads"] * SIZES["head_dim"]
) * (BLOCK_TOKENS * 4)
"""Of a model of those sizes in fp32."""
ACCOUNTS: Final = (AccountId("a" * 32), AccountId("b" * 32))
"""Each hands over half of what fits."""
NUM_AT_ONCE: Final = 6
PROMPT_BLOCKS: Final = 12
"""Full ones, of each of the prompts that fill the host memory together."""
NUM_HOST_BLOCKS: Final = (NUM_AT_ONCE * PROMPT_BLOCKS * 4 // 3, 2 * NUM_AT_ONCE * PROMPT_BLOCKS)
"""Of the node that answers, a quarter of which is left to others, and of the one for prompts, half
of which two accounts may keep."""
MAX_TOKENS: Final = 6
LEASE_MS: Final = int(1000 * (MOST_BATCH_TIMES * create_transfer("nixl").batch_s + 2))
"""How long a lease outlasts the ticket of who reads, with a second to spare."""
PATIENCE_S: Final = 60.0
LOOK_MS: Final = 100


def read_starved(process_id: int) -> float:
    """Seconds for which a process' threads could have run and others did. Source: proc(5)."""
    tasks = Path(f"/proc/{process_id}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[1]) for task in tasks) / 1e9


def create_prompts() -> list[list[int]]:
    """First those that fill the host memory; the others are of all lengths, half begin alike."""
    whole = PROMPT_BLOCKS * BLOCK_TOKENS + 1
    prefix = create_prompt(70, 99)
    some = [(prefix if i % 2 else []) + create_prompt(9 + 9 * i, i) for i in range(14)]
    return [create_prompt(whole, 50 + i) for i in range(NUM_AT_ONCE)] + some


@dataclass(slots=True)
class Asked:
    """One request as its client has it. Units: seconds and milliseconds of `node_clock`."""

    split: Split
    expected: list[int]
    deadline_ms: int
    ended_s: float = 0.0
    """0 while it goes on."""
    is_cut: bool = False
    """Ended by the gateway, since its node for the answer is gone."""
    is_over: bool = False
    """That node is gone: nobody has anything to say of it."""
    is_alone: bool = False
    """The other node is gone."""
    is_silent: bool = False
    """The gateway says nothing of that: nodes have deadlines and leases alone."""
    has_stopped: bool = False
    starved_s: float = 0.0
    """What the node and this process had waited for a free core shortly before its deadline."""
    looked_ms: int = 0
    """When that was looked at."""
    starved_at_end_s: float | None = None
    """The same when its node was killed, of which nothing can be read any more."""

    def __post_init__(self) -> None:
        self.starved_s = self._measure_starved()

    def carry(self) -> None:
        """What the gateway does with the words that have come."""
        split = self.split
        if self.is_over:
            return
        now_ms = read_node_ms()
        if self.looked_ms + LOOK_MS <= now_ms < self.deadline_ms:
            self.looked_ms, self.starved_s = now_ms, self._measure_starved()
        if not self.is_alone:
            split.carry()
        elif split.answer.find(KvReserved) and not (self.has_stopped or self.is_silent):
            self.has_stopped = True
            split.decode.send(StopImport(SequenceId(split.decode_id)))
        if split.answer.is_over and not self.ended_s:
            self.ended_s = time.monotonic()

    def note_lost(self, core: Core) -> None:
        """One of its nodes is gone."""
        split = self.split
        if core is split.prefill:
            self.is_alone = True
            return
        self.is_over = True
        if not self.ended_s:
            self.is_cut, self.ended_s = True, time.monotonic()
        if split.prefill_id and not self.is_silent:
            split.prefill.send(AbortSequence(SequenceId(split.prefill_id)))
            split.prefill.send(ReleaseExport(SequenceId(split.prefill_id)))

    @property
    def is_settled(self) -> bool:
        """True when nothing of it lands any more at a node that lives."""
        answer = self.split.answer
        has_ended = bool(answer.find(KvLanded) or answer.find(KvGaveUp))
        return self.is_over or (answer.is_over and (has_ended or not answer.find(KvReserved)))

    def note_dying(self) -> None:
        """Its node is about to be killed."""
        self.starved_at_end_s = self._measure_starved()

    def _measure_starved(self) -> float:
        return read_starved(self.split.decode.process.pid) + read_starved(os.getpid())

    def check(self) -> str:
        """How it ended, which was whole or a clean error, and in time: a second that a machine
        gives to others is none.
        """
        late_s = self.ended_s - self.deadline_ms / 1000
        if late_s > 1.0:
            ended_s = self.starved_at_end_s
            late_s -= (self._measure_starved() if ended_s is None else ended_s) - self.starved_s
        assert late_s <= 1.0, (late_s, self.split.answer)
        answer = self.split.answer
        if self.is_cut:
            assert answer.token_ids == self.expected[: len(answer.token_ids)]
            return "cut"
        if answer.error is not None:
            assert answer.error.code == DeadlineExceeded.code, answer
            assert answer.token_ids == self.expected[: len(answer.token_ids)]
            return "deadline"
        assert answer.token_ids == self.expected, answer
        return "handed over" if answer.find(KvLanded) else "computed"


@dataclass(slots=True)
class Kill:
    """What is killed, and when. Drawn by chance."""

    place: int
    """0: of the node that answers, 1: of the one for prompts."""
    is_core: bool
    """Core and agent; else the agent alone."""
    step: str
    delay_s: float
    is_silent: bool
    came_s: float = 0.0
    is_done: bool = False
    num_losses: int = -1
    """Of the core's agents, before; -1 where the core is another's by now."""

    @classmethod
    def draw(cls, random: Random) -> "Kill":
        """Any of either node, at any step, some milliseconds into it."""
        step = random.choice(list(STEPS))
        delay_s = random.choice([0.0, random.uniform(0.0, 0.03)])
        return cls(random.randrange(2), random.random() < 0.5, step, delay_s, random.random() < 0.1)


@dataclass(slots=True)
class KilledPair:
    """Both cores and what is needed to start one again."""

    model: Path
    directory: Path
    engine: str
    prompts: list[list[int]] = field(default_factory=create_prompts)
    answers: list[list[int]] = field(default_factory=list[list[int]])
    """What one core says alone."""
    cores: list[ForkedCore] = field(default_factory=list[ForkedCore])

    def start(self) -> None:
        """Both, and all answers without a split."""
        self.cores += [self._create_core(place) for place in range(2)]
        for core in self.cores:
            core.wait_ready()
        core = self.cores[0]
        for prompt in self.prompts:
            request = create_request(0, prompt, max_tokens=MAX_TOKENS, salt=os.urandom(32))
            number = core.open(lambda i, r=request: msgspec.structs.replace(r, sequence_id=i))
            core.wait(lambda number=number: core.answers[number].is_over)
            self.answers.append(core.answers[number].token_ids)

    def close(self) -> None:
        for core in self.cores:
            core.close()

    def ask(
        self, number: int, salt: bytes, patience_ms: int, deadline_ms: int, *, is_silent: bool
    ) -> Asked:
        """One prompt; the request has so long in all, and so long until it computes alone."""
        until_ms = read_node_ms() + deadline_ms
        request = create_request(
            0,
            self.prompts[number],
            max_tokens=MAX_TOKENS,
            salt=salt,
            deadline_ms=until_ms,
            account_id=ACCOUNTS[number % 2],
        )
        asked = Asked(
            Split(self.cores[0], self.cores[1], request, patience_ms),
            self.answers[number],
            until_ms,
            is_silent=is_silent,
        )
        asked.split.open()
        return asked

    def ask_all(self, salt: bytes, patience_ms: int = 20_000) -> list[Asked]:
        """The prompts that need all host blocks of both, answered."""
        every = [
            self.ask(number, salt, patience_ms, 2 * patience_ms, is_silent=False)
            for number in range(NUM_AT_ONCE)
        ]
        self.run(every, lambda: all(asked.ended_s and asked.is_settled for asked in every))
        return every

    def can_reserve_all(self, salt: bytes) -> bool:
        """True when each node has all host blocks that one account may have (three quarters) for
        prompts that nobody computes.
        """
        return all(self._can_reserve(place, salt) for place in range(2))

    def _can_reserve(self, place: int, salt: bytes) -> bool:
        core, numbers = self.cores[place], range(NUM_HOST_BLOCKS[place] * 3 // 4 // PROMPT_BLOCKS)
        until_ms = read_node_ms() + int(PATIENCE_S * 1000)
        asked: list[int] = []
        for number in numbers:
            own_salt = hashlib.sha256(salt + bytes([place, number])).digest()
            prompt = self.prompts[number % NUM_AT_ONCE]
            request = create_request(0, prompt, max_tokens=1, salt=own_salt)
            request = msgspec.structs.replace(request, arrival=KvArrival(until_ms))
            asked.append(core.open(lambda i, r=request: msgspec.structs.replace(r, sequence_id=i)))
        answers = [core.answers[number] for number in asked]
        core.wait(lambda: all(answer.events for answer in answers))
        has_all = all(answer.find(KvReserved) for answer in answers)
        for number in asked:
            core.send(AbortSequence(SequenceId(number)))
        core.wait(lambda: all(answer.is_over and answer.find(KvGaveUp) for answer in answers))
        return has_all

    def run(
        self, every: Sequence[Asked], is_so: Callable[[], bool], kill: Kill | None = None
    ) -> None:
        """Carries words until something is so."""
        until_s = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < until_s, (kill, every)
            for core in self.cores:
                core._in.poll(1)
                core.read()
            for asked in every:
                asked.carry()
            if kill is not None and not kill.is_done:
                self._watch(every, kill)

    def restore(self, every: Sequence[Asked], kill: Kill) -> None:
        """Until all that was lost is there again, and nothing lands or is leased any more."""
        if kill.is_core:
            self.cores[kill.place].close()
            self.cores[kill.place] = self._create_core(kill.place)
        self.run(every, lambda: all(asked.is_settled for asked in every))
        for core, other in (self.cores, self.cores[::-1]):
            num_losses = kill.num_losses if core is self.cores[kill.place] else -1
            core.wait(
                lambda core=core, before=num_losses: core.can_move and core.num_losses > before,
                other,
            )
        if kill.is_silent and kill.is_core and kill.place == 0:
            leased_ms = max(asked.split.deadline_ms for asked in every) + LEASE_MS
            time.sleep(leased_ms / 1000)

    def wait_free(self) -> None:
        """Until no block of a device is in use."""
        for core in self.cores:
            core.wait(lambda core=core: core.load.num_free_blocks == core.load.num_blocks)

    def _watch(self, every: Sequence[Asked], kill: Kill) -> None:
        """Kills when it is time."""
        has_come = STEPS[kill.step]
        if not kill.came_s and any(has_come(asked.split) for asked in every):
            kill.came_s = time.monotonic()
        if not kill.came_s or time.monotonic() < kill.came_s + kill.delay_s:
            return
        core = self.cores[kill.place]
        kill.is_done = True
        if not kill.is_core:
            kill.num_losses = core.num_losses
            os.kill(core.find_agent(), signal.SIGKILL)
            return
        for asked in every:
            if core is asked.split.decode:
                asked.note_dying()
        core.process.kill()
        core.process.wait()
        core.read()
        for asked in every:
            asked.note_lost(core)

    def _create_core(self, place: int) -> ForkedCore:
        return ForkedCore(
            ("decode", "prefill")[place],
            self.model,
            self.directory,
            create_transfer(self.engine),
            swap_bytes=NUM_HOST_BLOCKS[place] * BLOCK_BYTES,
            kv_bytes=2 * NUM_HOST_BLOCKS[0] * BLOCK_BYTES,
        )
