"""What tests of registers share: races between processes, stores that play a script, a clock that only pauses move."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier

from tallymark.ballots import BallotRegister
from tallymark.errors import StoreDenied, StoreError, StoreUnsuited
from tallymark.register import CreateRegister, Patience, Register
from tallymark.store.local import LocalStore
from tallymark.store.memory import MemoryStore
from tallymark.store.port import Listed, Store

KEY = "journal/0000000000.json"
OURS, THEIRS = b'{"by":"us"}', b'{"by":"them"}'


def patient(pauses: int = 3) -> Patience:
    """Patience of so many pauses of one second each, on a clock that only pauses move."""
    now = [0.0]

    def sleep(pause_s: float) -> None:
        now[0] += pause_s

    return Patience(pauses, first_pause_s=1, longest_pause_s=1, clock=lambda: now[0], sleep=sleep, random=lambda: 1.0)


class Scripted(MemoryStore):
    """A store of which each request does the next thing that its script says; when that is over, it just works.

    A word of the script is `verb word`: `ok`, `lost` (done, and the reply is lost), `down` (not done), `late` (not
    done now; it lands before the next request but one), `denied`, `unsuited`, `broken` (an error that says not to try
    again) and, for create, `exists` (said of a free key). A script waits for its first word's verb.
    """

    __slots__ = ("_late", "_script", "asked", "visibility_s")

    def __init__(self, *script: str, name: str = "", create: bool = True, visibility_s: float = 0.0) -> None:
        super().__init__(name, creates_exclusively=create)
        self._script = list(script)
        self._late: list[tuple[int, Callable[[], object]]] = []
        self.asked: list[str] = []
        self.visibility_s = visibility_s

    @property
    def visibility_delay_s(self) -> float:
        return self.visibility_s

    def _word(self, verb: str, key: str, do: Callable[[], object]) -> str:
        self.asked.append(f"{verb} {key}")
        for due, land in self._late:
            if due == len(self.asked):
                land()
        word = "ok"
        if self._script and self._script[0].split()[0] == verb:
            word = self._script.pop(0).split()[1]
        if word == "lost":
            do()
        if word == "late":
            self._late.append((len(self.asked) + 2, do))
        if word in ("lost", "late", "down", "broken"):
            raise StoreError(f"the {verb} is {word}", key=key, retryable=word != "broken")
        if word == "denied":
            raise StoreDenied("no permission", key=key)
        if word == "unsuited":
            raise StoreUnsuited("cannot do this", key=key)
        return word

    def read(self, key: str) -> bytes | None:
        self._word("read", key, lambda: None)
        return super().read(key)

    def create(self, key: str, body: bytes) -> bool:
        do = super().create
        return self._word("create", key, lambda: do(key, body)) != "exists" and do(key, body)

    def put(self, key: str, body: bytes) -> None:
        do = super().put
        self._word("put", key, lambda: do(key, body))
        do(key, body)

    def list(self, prefix: str, after: str = "") -> Iterator[Listed]:
        self._word("list", prefix, lambda: None)
        return super().list(prefix, after)

    def behind(self, key: str) -> bytes | None:
        """What lies there, without asking."""
        return MemoryStore.read(self, key)


def register_of(kind: str, store: Store, patience: Patience | None = None) -> Register:
    return {"create": CreateRegister, "ballots": BallotRegister}[kind](store, patience or Patience())


def propose_in_process(kind: str, root: str, who: int, rounds: int, start: Barrier, told: SimpleQueue) -> None:
    """The work of one process of a race: propose to one register after another."""
    register = register_of(kind, LocalStore(root), Patience(30.0, 0.002, 0.2))
    for slot in range(rounds):
        start.wait(60)
        told.put((slot, register.propose(f"journal/{slot:010d}.json", f'{{"by":{who}}}'.encode())))


def race(kind: str, root: str, *, processes: int, rounds: int) -> Sequence[set[bytes]]:
    """What all processes were told, by register."""
    context = multiprocessing.get_context("spawn")
    start, told = context.Barrier(processes), context.SimpleQueue()
    children = [
        context.Process(target=propose_in_process, args=(kind, root, who, rounds, start, told))
        for who in range(processes)
    ]
    for child in children:
        child.start()
    answers: list[list[bytes]] = [[] for _ in range(rounds)]
    for _ in range(rounds * processes):
        slot, body = told.get()
        answers[slot].append(body)
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * processes
    assert [len(answer) for answer in answers] == [processes] * rounds
    return [set(answer) for answer in answers]
