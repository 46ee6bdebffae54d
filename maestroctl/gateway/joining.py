"""Which job a request belongs to when it does not say.

Theory of operation. No agent framework sends a job id, but all of them send the conversation again
with each call. Two things in it are ours: the ids of tool calls that an engine made up, and the
assistant message that an engine wrote. When an answer ends, two kinds of keys are noted under its
job: each tool-call id (and response id), and the digest of the whole conversation up to and
including the answer. A later request that holds a noted id, or whose first messages have a noted
digest, continues that job.

- The system message takes no part: agents of one job differ in it and share the rest.
- Tool-call arguments are compared parsed, because some clients write them anew.
- Everything is scoped by the caller's API key; a key never joins the job of another.
- A key that two jobs have noted belongs to neither: two identical first calls with identical
  answers cannot be told apart, and a wrong join is worse than a new job.
- A digest is of a prefix *ending in one of our answers*, so a match always contains our reply, and
  the longest one wins.
- Only digests are kept (no text), for 30 minutes, at most `max_keys` of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from maestroctl.domain.ids import JobId
from maestroctl.gateway.conversation import Conversation, Turn

TTL_S = 1800.0
MAX_KEYS = 50_000
"""About 250 bytes each."""

_AMBIGUOUS = JobId("")


class Chain:
    """Digests of the prefixes of one conversation.

    Attributes:
        scope: of the caller's API key.
        ends: digest up to and including each turn that is ours, shortest first.
        last: digest of the whole.
    """

    __slots__ = ("ends", "last", "scope")

    def __init__(self, scope: int, turns: Sequence[Turn]) -> None:
        self.scope = scope
        self.last = hash((scope, "conversation"))
        self.ends: list[int] = []
        for turn in turns:
            self.last = hash((self.last, turn.digest()))
            if turn.is_ours:
                self.ends.append(self.last)


class JobJoiner:
    """Keys of answers given, and the jobs they belong to. Times are the caller's clock."""

    def __init__(self, *, ttl_s: float = TTL_S, max_keys: int = MAX_KEYS) -> None:
        self._ttl_s = ttl_s
        self._max_keys = max_keys
        # key -> (job or ambiguous, noted at); oldest first, so expiry looks at the head only
        self._jobs: OrderedDict[int, tuple[JobId, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._jobs)

    def find(self, chain: Chain, conversation: Conversation, now_s: float) -> JobId | None:
        """The job that the request continues; None = none, or more than one."""
        jobs = {
            job
            for id_ in _ids_of(conversation.turns, conversation.ids)
            if (job := self._lookup(_id_key(chain.scope, id_), now_s))
        }
        if len(jobs) == 1:
            return jobs.pop()
        for key in reversed(chain.ends):
            job = self._lookup(key, now_s)
            if job is not None:
                return job or None
        return None

    def note(
        self, scope: int, prefix: int, job: JobId, answer: Sequence[Turn], now_s: float
    ) -> None:
        """Remember an answer of `job`.

        Args:
            scope: of the caller's API key.
            prefix: digest of the conversation that was answered (`Chain.last`).
            answer: its turns.
        """
        self.note_ids(scope, job, _ids_of(answer, ()), now_s)
        for turn in answer:
            prefix = hash((prefix, turn.digest()))
        if answer:
            self._put(prefix, job, now_s)

    def note_ids(self, scope: int, job: JobId, ids: Iterable[str], now_s: float) -> None:
        """Remember ids that an answer of `job` made up."""
        for id_ in ids:
            self._put(_id_key(scope, id_), job, now_s)

    def _lookup(self, key: int, now_s: float) -> JobId | None:
        entry = self._jobs.get(key)
        if entry is None or now_s - entry[1] > self._ttl_s:
            return None
        return entry[0]

    def _put(self, key: int, job: JobId, now_s: float) -> None:
        known = self._lookup(key, now_s)
        if known is not None and known != job:
            job = _AMBIGUOUS
        self._jobs[key] = (job, now_s)
        self._jobs.move_to_end(key)
        self._forget_old(now_s)

    def _forget_old(self, now_s: float) -> None:
        while len(self._jobs) > self._max_keys:
            self._jobs.popitem(last=False)
        for _ in range(2):  # two per key noted: the table shrinks, and no call pays for all of it
            key, (_job, noted_s) = next(iter(self._jobs.items()))
            if now_s - noted_s <= self._ttl_s:
                return
            del self._jobs[key]


def _id_key(scope: int, id_: str) -> int:
    return hash((scope, "id", id_))


def _ids_of(turns: Sequence[Turn], more: Iterable[str]) -> list[str]:
    ids = list(more)
    for turn in turns:
        if turn.ids:
            ids.extend(turn.ids)
    return ids
