"""Make the labels of table rows. A label is the case's name, followed by the options (scheme, scale, method)
in which the cases of the run differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from vkq.bench.fitted import shown_names
from vkq.bench.result import Row
from vkq.check.cases import Case

Key = tuple[str, str, str, str]  # (name, scheme, scale, method) of a case
MODEL = "model"  # the scheme of rows that belong to a whole model; models have no options


def key_of(one: Row | Case | str) -> Key:
    """Return (name, scheme, scale, method) of a case; for a model, the last three are empty."""
    if isinstance(one, str):
        return (one, "", "", "")
    name = one.name if isinstance(one, Case) else one.case
    return (name, "", "", "") if one.scheme == MODEL else (name, one.scheme, one.scale, one.method or "auto")


class Labels:
    """The labels of all cases of a run.

    *letters*: the maximum length of a label in a row; None: no limit. A longer label loses the sizes that
    all cases of its operator share (`shown_names`). If it is still too long, it is printed on a line above
    the row.
    """

    def __init__(self, cases: Iterable[Row | Case | str], letters: int | None = None):
        keys = list(dict.fromkeys(map(key_of, cases)))
        options = [list(dict.fromkeys(filter(None, column))) for column in zip(*keys, strict=True)][1:]
        self._said = [len(values) > 1 for values in options]
        self._whole = {key: self._words(key) for key in keys}
        self.longest = max(map(len, self._whole.values()), default=0)
        self.letters = self.longest if letters is None else min(self.longest, letters)
        shown = shown_names([key[0] for key in keys], self.letters)
        counts = Counter(shown.values())
        fits = {name: form for name, form in shown.items() if len(form) <= self.letters and counts[form] == 1}
        self._short = {key: fits[key[0]] for key in keys if key[0] in fits and self._whole[key] == key[0]}

    def _words(self, key: Key) -> str:
        name, scheme, scale, method = key
        words = scheme, f"per-{scale}" if scale else "", method
        return " ".join(
            [name, *(word for word, said in zip(words, self._said, strict=True) if said and word)]
        )

    def of(self, one: Row | Case | str) -> tuple[str, str]:
        """Return (label for a line above the row, label in the row). One of the two is empty."""
        key = key_of(one)
        whole = self._whole.get(key, key[0])
        if len(whole) <= self.letters:
            return "", whole
        return ("", self._short[key]) if key in self._short else (whole, "")
