"""Compresses parts of a file by deflate. The words of a shader are first sorted into columns.

1. SPIR-V has four columns: the first, second and third words of all instructions, and the remaining words.
2. Third words are mostly result ids, which count upward. Each becomes its difference from the previous one.
3. Later words mostly refer to recent results. Each becomes its difference from the third word of its own
   instruction.
4. The sign of a difference moves to its lowest bit.
5. The bytes are stored in four planes: the lowest bytes of all words, their second bytes, and so on.

native/packed.cpp restores the words."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ModelError

AS_IT_IS, DEFLATED, IN_COLUMNS = 0, 1, 2
PAYS = 2  # data that shrinks by at most this factor stays uncompressed, to be read in place
MOST_TIMES = 1032  # maximum bytes that one byte of deflate can unpack to
HEAD, LAST = 5, 3  # words before the first instruction; index of the last column
Words = npt.NDArray[np.uint32]
ONE = np.uint32(1)


def deflated(data: bytes) -> bytes:
    """Return data compressed at the highest level, without a header."""
    stream = zlib.compressobj(9, zlib.DEFLATED, -15, 9)
    return stream.compress(data) + stream.flush()


def packed(data: bytes) -> tuple[int, bytes]:
    """Return the packing and the stored bytes: `DEFLATED` if that saves enough, else `AS_IT_IS`."""
    smaller = deflated(data)
    return (DEFLATED, smaller) if PAYS * len(smaller) < len(data) else (AS_IT_IS, data)


def in_columns(spirv: bytes) -> tuple[int, bytes]:
    """Return the packing and the stored bytes of a shader. Its words are sorted into columns before they are
    compressed."""
    words = np.frombuffer(spirv, np.uint32)
    body, lengths = words[HEAD:], list[int]()
    firsts, at = (body >> 16).tolist(), 0
    while at < body.size:
        lengths.append(firsts[at])
        at += firsts[at]
    place, third_of, order = _columns(lengths)
    new = body.copy()
    third, rest = place == 2, place > 2
    new[third] = _signed_last(np.diff(body[third], prepend=np.uint32(0)))
    new[rest] = _signed_last(body[rest] - body[third_of[rest]])
    sorted_words = np.concatenate([words[:HEAD], new[order]])
    return IN_COLUMNS, deflated(sorted_words.view(np.uint8).reshape(-1, 4).T.tobytes())


def unpacked(stored: bytes, size: int, packing: int) -> bytes:
    """Return the original data of *size* bytes. Raises ModelError if *stored* is damaged."""
    if packing == AS_IT_IS:
        return stored
    stream = zlib.decompressobj(-15)
    try:
        data = stream.decompress(stored, size + 1)
    except zlib.error as error:
        raise ModelError(f"the file is damaged: a packed part cannot be unpacked ({error})") from None
    if len(data) != size or not stream.eof:
        raise ModelError("the file is damaged: a packed part does not unpack to its recorded size")
    return _of_columns(data) if packing == IN_COLUMNS else data


def _of_columns(data: bytes) -> bytes:
    if len(data) % 4 or len(data) < 4 * HEAD:
        raise ModelError("the file is damaged: a packed part is not a shader")
    words = np.frombuffer(data, np.uint8).reshape(4, -1).T.copy().view(np.uint32).ravel()
    sorted_words, lengths, left = words[HEAD:], list[int](), words.size - HEAD
    for length in (sorted_words >> 16).tolist():
        if not left:
            break
        if not 0 < length <= left:
            raise ModelError("the file is damaged: a packed part has an instruction beyond its end")
        lengths.append(length)
        left -= length
    place, third_of, order = _columns(lengths)
    body = np.empty_like(sorted_words)
    body[order] = sorted_words
    third, rest = place == 2, place > 2
    body[third] = np.cumsum(_signed(body[third]), dtype=np.uint32)
    body[rest] = _signed(body[rest]) + body[third_of[rest]]
    return bytes(words[:HEAD]) + bytes(body)


def _columns(lengths: list[int]) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Return three arrays: for each word its position in its instruction, for each word the index of that
    instruction's third word, and the permutation that sorts the words by column."""
    counts = np.asarray(lengths, np.int64)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    place = np.arange(starts.size) - starts
    return place, starts + 2, np.argsort(np.minimum(place, LAST), kind="stable")


def _signed_last(words: Words) -> Words:
    return np.asarray((words << ONE) ^ (np.uint32(0) - (words >> np.uint32(31))))


def _signed(words: Words) -> Words:
    return np.asarray((words >> ONE) ^ (np.uint32(0) - (words & ONE)))
