"""What a table calls its rows: the case, and the options in which the cases of a run differ."""

from __future__ import annotations

from collections.abc import Iterable

from vkq.bench.fitted import distinct
from vkq.bench.result import Row
from vkq.check.cases import Case

Key = tuple[str, str, str, str]  # name, scheme, scale, method
MODEL = "model"  # the scheme of a model's rows, which have no options


def key_of(one: Row | Case | str) -> Key:
    """The name of a case with its options; a model has its name alone."""
    if isinstance(one, str):
        return (one, "", "", "")
    name = one.name if isinstance(one, Case) else one.case
    return (name, "", "", "") if one.scheme == MODEL else (name, one.scheme, one.scale, one.method or "auto")


class Labels:
    """A label for each case of a run.

    A label that is longer than *letters*, or that is shortened to the same letters as another, stands on a
    line of its own. *letters*: the room for a name in a row; None gives each label the room that it needs.
    """

    def __init__(self, cases: Iterable[Row | Case | str], letters: int | None = None):
        keys = list(dict.fromkeys(map(key_of, cases)))
        options = [list(dict.fromkeys(filter(None, column))) for column in zip(*keys, strict=True)][1:]
        self._said = [len(values) > 1 for values in options]
        self._whole = {key: self._words(key) for key in keys}
        self.longest = max(map(len, self._whole.values()), default=0)
        self.letters = self.longest if letters is None else min(self.longest, letters)
        self._short = distinct([key[0] for key in keys], self.letters)

    def _words(self, key: Key) -> str:
        name, scheme, scale, method = key
        words = scheme, f"per-{scale}" if scale else "", method
        return " ".join(
            [name, *(word for word, said in zip(words, self._said, strict=True) if said and word)]
        )

    def of(self, one: Row | Case | str) -> tuple[str, str]:
        """Return (the line above the row or "", the name in the row or "")."""
        key = key_of(one)
        whole = self._whole.get(key, key[0])
        if len(whole) <= self.letters or key not in self._whole:
            return "", whole
        short = self._short[key[0]] if whole == key[0] else None
        return (whole, "") if short is None else ("", short)
