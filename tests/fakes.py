"""Stand-ins for tests of the core: a tokenizer of bytes and an executor of scripted logits."""

from array import array
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import blake2b

from headway.core.base.units import Seconds
from headway.core.engine.core import EngineCore
from headway.core.engine.settings import ResolvedEngine
from headway.core.messages.path import EngineRequest, Sampling, TokenLogprob
from headway.core.messages.step import SamplingState, StepPlan, StepResult

EOS = 256
VOCABULARY = 257


class ByteTokenizer:
    """256 tokens of one byte each, and an end of sequence."""

    vocab_size = VOCABULARY
    eos_ids = (EOS,)

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """The text's UTF-8 bytes."""
        return list(text.encode())

    def min_tokens(self, text: str) -> int:
        """One a byte."""
        return len(text.encode())

    def token_bytes(self, token_id: int) -> bytes:
        """The byte itself."""
        return b"<eos>" if token_id == EOS else bytes((token_id,))

    def is_special(self, token_id: int) -> bool:
        """Only the end of sequence is."""
        return token_id == EOS


NextToken = Callable[[Sequence[int], SamplingState, int], int]


def hashed_next(tokens: Sequence[int], state: SamplingState, position: int) -> int:
    """A model in one line: the next token depends on every token before it, and on the draw."""
    sampling = state.sampling
    key = (tuple(tokens), sampling.seed if sampling.temperature else 0, state.choice)
    return blake2b(repr(key).encode(), digest_size=1).digest()[0]


class ScriptedExecutor:
    """An executor whose KV is the tokens themselves, written and read through block tables.

    A sequence that is given another's block, position or history answers differently from
    one that runs alone, so the suites that compare the two see it.
    """

    def __init__(self, core: EngineCore, next_token: NextToken = hashed_next) -> None:
        self._grid = core.grid
        self._size = core.settings.block_size
        self._pool: list[list[int | None]] = [
            [None] * self._size for _ in range(core.settings.num_blocks)
        ]
        self._next_token = next_token
        self._submitted: deque[tuple[StepPlan, list[list[int]]]] = deque()
        self._last: array[int] = array("i")
        self.num_draws = 0

    def submit(self, plan: StepPlan) -> None:
        """Copies the block tables that the plan names."""
        tables = [self._grid.read(row, self._grid.width) for row in plan.tables]
        self._submitted.append((plan, tables))

    def collect(self) -> StepResult:
        """Runs the oldest plan."""
        plan, tables = self._submitted.popleft()
        copied = {copy.target: list(self._pool[copy.source]) for copy in plan.copies}
        assert len(copied) == len(plan.copies), "two copies have one target"
        for target, content in copied.items():
            self._pool[target] = content
        inputs = list(plan.token_ids)
        offsets = [sum(plan.num_tokens[:row]) for row in range(len(plan.tables))]
        for row, draw in zip(plan.pending_rows, plan.pending_from, strict=True):
            inputs[offsets[row] + plan.num_tokens[row] - 1] = self._last[draw]
        for row, offset in enumerate(offsets):
            for index in range(plan.num_tokens[row]):
                self._write(tables[row], plan.starts[row] + index, inputs[offset + index])
        drawn = array("i")
        logprobs: list[TokenLogprob | None] = []
        for row, position, state in zip(plan.sample_rows, plan.positions, plan.states, strict=True):
            end = plan.starts[row] + plan.num_tokens[row]
            history = [self._read(tables[row], at) for at in range(end)]
            drawn.append(self._next_token(history, state, position))
            wanted = state.sampling.num_logprobs is not None
            logprobs.append(TokenLogprob(drawn[-1], -1.0) if wanted else None)
        self.num_draws += len(drawn)
        self._last = drawn
        scores = tuple(tuple(TokenLogprob(t, -2.0) for t in s.targets) for s in plan.scores)
        return StepResult(plan.step, drawn, tuple(logprobs), scores)

    def close(self) -> None:
        """Holds nothing."""

    def _write(self, table: list[int], position: int, token: int) -> None:
        self._pool[table[position // self._size]][position % self._size] = token

    def _read(self, table: list[int], position: int) -> int:
        token = self._pool[table[position // self._size]][position % self._size]
        assert token is not None, f"position {position} is read before it is written"
        return token


def engine_settings(
    *,
    max_model_len: int = 64,
    max_num_seqs: int = 4,
    max_num_batched_tokens: int = 16,
    block_size: int = 4,
    num_blocks: int = 64,
    enable_prefix_caching: bool = True,
    max_waiting_requests: int = 1000,
    max_waiting_tokens: int = 100_000,
    itl_target: Seconds | None = None,
) -> ResolvedEngine:
    """Small settings, so that tests meet every border."""
    return ResolvedEngine(
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        block_size=block_size,
        num_blocks=num_blocks,
        enable_prefix_caching=enable_prefix_caching,
        max_waiting_requests=max_waiting_requests,
        max_waiting_tokens=max_waiting_tokens,
        itl_target=itl_target,
    )


def request(
    request_id: str = "r",
    prompt: Sequence[int] = (1, 2, 3),
    *,
    n: int = 1,
    sampling: Sampling | None = None,
    salt: bytes = b"",
) -> EngineRequest:
    """A request with defaults; `greedy()` makes its sampling."""
    return EngineRequest(
        id=request_id,
        prompt=tuple(prompt),
        sampling=sampling or greedy(),
        num_choices=n,
        cache_salt=salt,
    )


def greedy(max_tokens: int = 8, *, stop: tuple[str, ...] = (), min_tokens: int = 0) -> Sampling:
    """Greedy sampling that a test then reads at a glance."""
    return Sampling(
        max_tokens=max_tokens, seed=0, temperature=0.0, stop=stop, min_tokens=min_tokens
    )
