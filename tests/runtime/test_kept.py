"""Values that are made once, and how many are kept."""

import threading

import pytest

from vkq.runtime.kept import Kept


def test_the_least_recently_used_goes() -> None:
    kept: Kept[int] = Kept(2)
    made: list[int] = []

    def get(key: int) -> int:
        return kept.get(key, lambda: made.append(key) or 10 * key)  # type: ignore[func-returns-value]

    assert [get(1), get(2), get(1), get(3), get(1)] == [10, 20, 10, 30, 10]
    assert made == [1, 2, 3]
    assert get(2) == 20
    assert made == [1, 2, 3, 2], "2 went when 3 came"
    kept.clear()
    assert get(1) == 10
    assert made[-1] == 1


def test_a_failed_one_is_made_again() -> None:
    kept: Kept[int] = Kept(2)
    with pytest.raises(ZeroDivisionError):
        kept.get("key", lambda: 1 // 0)
    assert kept.get("key", lambda: 7) == 7


def test_of_two_threads_the_first_one_counts() -> None:
    """Nothing waits for another thread's making."""
    kept: Kept[str] = Kept(2)
    begun, go_on = threading.Event(), threading.Event()
    found: list[str] = []

    def slow() -> str:
        begun.set()
        go_on.wait(10)
        return "slow"

    thread = threading.Thread(target=lambda: found.append(kept.get("key", slow)))
    thread.start()
    assert begun.wait(10)
    assert kept.get("key", lambda: "fast") == "fast"
    go_on.set()
    thread.join(10)
    assert found == ["fast"]
