"""Tests of Python work that runs during a long driver call."""

from __future__ import annotations

import threading

import pytest

from vkq.device.overlap import long_call, overlapped


def test_pieces_are_done_in_this_thread_and_a_call_is_waited_for() -> None:
    done: list[tuple[str, int]] = []
    wait = threading.Event()

    def piece(name: str) -> None:
        done.append((name, threading.get_ident()))
        if name == "second":
            wait.set()  # ends the call, so the third piece runs after it

    def call() -> str:
        assert wait.wait(10), "the pieces are done while the call takes its time"
        done.append(("call", threading.get_ident()))
        return "result"

    here = threading.get_ident()
    with overlapped(*(lambda name=name: piece(name) for name in ("first", "second", "third"))):
        assert long_call(call) == "result"
        assert long_call(lambda: done.append(("last", threading.get_ident()))) is None
    assert [name for name, _ in done if name not in ("call", "last")] == ["first", "second", "third"]
    assert {thread for name, thread in done if name not in ("call", "last")} == {here}
    assert next(thread for name, thread in done if name == "call") != here


def test_without_pieces_a_call_stays_in_its_thread() -> None:
    assert long_call(threading.get_ident) == threading.get_ident()
    with overlapped():
        assert long_call(threading.get_ident) == threading.get_ident()


def test_pieces_that_no_call_had_time_for_are_done_at_the_end_of_the_block() -> None:
    done: list[int] = []
    with overlapped(lambda: done.append(1), lambda: done.append(2)):
        assert not done
    assert done == [1, 2]


def test_the_first_error_of_a_piece_is_raised_at_the_end_and_ends_the_pieces() -> None:
    done: list[str] = []

    def broken() -> None:
        raise ValueError("a model that is none")

    def opened() -> None:
        with overlapped(broken, lambda: done.append("piece")):
            long_call(lambda: done.append("call"))
            done.append("block")

    with pytest.raises(ValueError, match="a model that is none"):
        opened()
    assert done == ["call", "block"], "the driver's call and what follows it are not given up"


def test_an_error_of_a_call_is_raised_where_it_was_asked_for() -> None:
    done: list[str] = []

    def lost() -> None:
        raise OSError("no driver")

    with pytest.raises(OSError, match="no driver"), overlapped(lambda: done.append("piece")):
        long_call(lost)
    assert done == ["piece"]
