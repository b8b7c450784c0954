"""Tests of vkq's locks, which raise an error where a plain lock would wait for ever."""

import os
import re
import signal
import threading
from pathlib import Path

import pytest

from vkq import turns as module
from vkq.errors import DeviceError
from vkq.turns import Turns


def child(work: object) -> int:
    """Fork; the child calls *work*. Return its exit code: 0 if *work* raises DeviceError with "fork"."""
    pid = os.fork()
    if pid == 0:
        try:
            work()  # type: ignore[operator]
        except DeviceError as error:
            os._exit(0 if "fork" in str(error) else 2)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def entered(turns: Turns) -> None:
    with turns:
        pass


def test_threads_take_turns() -> None:
    turns, order = Turns("it"), []
    with turns:
        other = threading.Thread(target=lambda: (entered(turns), order.append("other")))
        other.start()
        order.append("first")
    other.join()
    assert order == ["first", "other"]


def test_a_thread_that_comes_back_is_told_and_goes_on() -> None:
    turns = Turns("it")
    with turns:
        for _ in range(2):
            with pytest.raises(DeviceError, match="it: this thread is inside it already"):
                entered(turns)
    entered(turns)
    again = Turns("it", again=True)
    with again:
        entered(again)


@pytest.mark.parametrize("again", [False, True])
def test_no_interrupt_leaves_a_lock_held(again: bool) -> None:
    """Signals that raise an error arrive at random points while a thread enters or leaves a lock. Another
    thread can still enter the lock afterwards."""

    def arrives(*_: object) -> None:
        raise InterruptedError

    turns, seen = Turns("it", again), 0
    before = signal.signal(signal.SIGALRM, arrives)
    try:
        while seen < 300:
            try:
                signal.setitimer(signal.ITIMER_REAL, 2e-4)
                while True:
                    with turns:
                        pass
            except InterruptedError:
                seen += 1
            other = threading.Thread(target=entered, args=[turns], daemon=True)
            other.start()
            other.join(20)
            assert not other.is_alive(), seen
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_child_forked_while_another_thread_is_inside_is_told() -> None:
    turns, inside, leave = Turns("it"), threading.Event(), threading.Event()

    def hold() -> None:
        with turns:
            inside.set()
            leave.wait()

    other = threading.Thread(target=hold)
    other.start()
    inside.wait()
    assert child(lambda: entered(turns)) == 0
    assert child(turns.close) == 1  # closing raises no error, and does not wait for the lock
    leave.set()
    other.join()
    assert child(lambda: entered(turns)) == 1  # no thread holds the lock, so entering it raises no error


def test_a_child_forked_by_the_thread_inside_goes_on() -> None:
    turns = Turns("it")
    with turns:
        pid = os.fork()
    if pid == 0:
        entered(turns)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_locks_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of locks forgets locks of closed sessions, so that a service can open many sessions. After a
    fork, the list still has the locks in use."""
    monkeypatch.setattr(module, "_all", {})
    monkeypatch.setattr(module, "_most", 5)
    kept = [Turns("kept") for _ in range(4)]
    for _ in range(2000):
        Turns("gone")
    assert len(module._all) <= 2 * len(kept) + 256 + 1
    assert [each() for each in list(module._all.values())[:4]] == kept


def test_there_are_no_other_locks() -> None:
    """No module uses a lock of `threading`, which would wait for ever in a forked child, or in a signal
    handler of the thread that holds the lock."""
    package = Path(module.__file__).parent
    lock = re.compile(r"\b(Lock|RLock|Condition|Semaphore|BoundedSemaphore)\(")
    found = {p.name for p in package.rglob("*.py") if lock.search(p.read_text())}
    assert found == {"turns.py"}
