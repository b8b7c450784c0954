"""``python -m tests.fuzz.guided TARGET SECONDS OPTION...``: fuzz one target with atheris for this many
seconds of processor time, with options of libFuzzer.

vkq's modules are loaded with a counter at every branch. An input that reaches a new branch is added to the
corpus, from which the next inputs are mutated.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

import atheris

# share of mutations that insert a token of the target; libFuzzer itself has only tokens of at most 64 bytes
LONG = 0.1

# Atheris adds no counters to modules that the finder of an editable installation loads. So modules are
# found in the checkout on sys.path first; the compiled extension is found only by that finder.
sys.meta_path.sort(key=lambda finder: not isinstance(finder, type))

with atheris.instrument_imports(include=["vkq"]):
    from .engine import checking
    from .targets import TARGETS, Target


def mutated(target: Target, data: bytes, most: int, seed: int) -> bytes:
    """Return *data*, an input of the corpus, with a random mutation."""
    r = random.Random(seed)
    if not target.tokens or r.random() >= LONG:
        return bytes(atheris.Mutate(data, most))
    token, at = r.choice(target.tokens), r.randint(0, len(data))
    data = data[:at] + token * r.choice((1, 1, 2, 30, 1000)) + data[at + r.choice((0, 1, len(token))) :]
    return data[:most]


def main() -> None:
    name, seconds, *options = sys.argv[1:]
    target = TARGETS[name]
    counted = atheris.instrument_imports(include=["vkq"])  # modules that are imported later also get counters
    with counted, checking(target) as check:
        end = time.process_time() + float(seconds)

        def limited(data: bytes) -> None:
            check(data)
            if time.process_time() > end:
                os.kill(os.getpid(), signal.SIGUSR1)  # this signal ends libFuzzer

        atheris.Setup([name, *options], limited, custom_mutator=lambda *given: mutated(target, *given))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
