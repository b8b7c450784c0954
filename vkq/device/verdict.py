"""Run a device's probe (vkq.probe) in a child process, and store its report on disk.

The child process reports the begin and the end of each stage of the probe. If the child dies, the driver
failed in the current stage, and a new child runs the remaining stages. Every failed stage runs twice,
unless it was too slow. A stage without a result counts as failed.

The report is stored for later processes if every failure is the driver's: a wrong result or a crash in both
runs. It is not stored if a failure may be temporary: the child was slow, killed, out of memory or cut
short.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .. import cache, spawn
from .._version import __version__
from ..turns import Turns
from . import first_sight, tuner
from .capabilities import Capabilities
from .cores import told_cores

FORMAT = 23  # version of the stored reports; raise it if a test or a rate changes
TIMEOUT_S = 60.0  # maximum number of seconds of a child process
RESTARTS = 4  # maximum number of new child processes after stages in which a child died
OPENING = "open"  # the stage that loads the driver, opens the device and compiles the shaders
CLEARLY = 1.25  # new rates replace stored rates if the fastest arithmetic changed by this factor
RATES, LOOPS = "rates", "loops"  # the stages that measure rates and the loop limit; they test nothing
CONVERSIONS = "conversions"  # a device that fails it converts float16 in integers
FORMS = ("s8s8", "u8s8", "u8u8", "float")
REQUANTIZE, SOFT = "requantize", "requantize_soft"  # a device must pass one of these two stages
LEAST_LOOPS = 65_535  # the loop limit that is assumed if it could not be measured
ALWAYS = (
    "float",
    REQUANTIZE,
    SOFT,
    "quantize",
    CONVERSIONS,
    LOOPS,
    RATES,
)  # the stages that every device has
_VERDICTS = ("wrong", "crashed")  # the kinds of outcomes that are the driver's fault


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The report of a probe.

    The tests are the dot forms, ``matrices``, ``matrices_half``, ``requantize``, ``quantize``, ``open``
    (opening the device), and others. ``rates``, ``clock``: see `vkq.probe.rates.Rates`; empty if not
    measured.
    """

    failures: Mapping[str, str]  # {failed test: error}
    soft_float: bool  # whether shaders must round floats in integer arithmetic
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    clock: str = ""
    isolated: bool = False  # whether the probe ran in a child process
    cores: int | None = None  # the measured number of cores
    loop_limit: int | None = None  # number of iterations after which the driver ends an invocation's loops
    converts: bool = False  # whether the device converts between float16 and float32 with the right bits

    @property
    def refusal(self) -> str | None:
        """The reason to refuse the device: it cannot be opened, rounds wrongly, or multiplies wrongly in
        every dot form. None if the device may be used."""
        for test in (OPENING, REQUANTIZE, "quantize"):
            if test in self.failures:
                return f"its probe failed ({test}): {self.failures[test]}"
        if "float" in self.failures and all(form in self.failures for form in FORMS if form != "float"):
            return f"its probe failed (float): {self.failures['float']}"
        return None

    @classmethod
    def parse(cls, value: Any) -> Verdict:
        """Return the report from a parsed JSON value. Raises ValueError if its keys or types are wrong."""
        fields = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(value, dict) or value.keys() != fields:
            raise ValueError(f"its keys are not {', '.join(sorted(fields))}")
        failures, rates = value["failures"], value["rates"]
        good = (
            isinstance(failures, dict)
            and all(isinstance(why, str) for why in failures.values())
            and isinstance(rates, dict)
            and all(isinstance(r, float) and math.isfinite(r) and r > 0 for r in rates.values())
            and value["clock"] in ("", "gpu", "host", "cpu")
            and all(isinstance(value[name], bool) for name in ("soft_float", "isolated", "converts"))
            and (value["cores"] is None or (type(value["cores"]) is int and value["cores"] > 0))
            and (value["loop_limit"] is None or type(value["loop_limit"]) is int)
        )
        if not good:
            raise ValueError("a value has the wrong type")
        return cls(**value)


@dataclasses.dataclass(frozen=True)
class _Outcome:
    """The outcome of a stage. If *kind* is "ok" or "wrong", *value* is the stage's result. For "missing"
    and the kinds of `spawn.Ended`, *value* is the reason."""

    kind: str
    value: Any


_reports: dict[str, Verdict] = {}  # the report of each device, by `Capabilities.key`
_lock = Turns("the probe of a device", again=True)


def report_of(c: Capabilities, here: Callable[[], Verdict] | None = None) -> Verdict | None:
    """Return the device's report: from this process, from the file, or from a new probe in a child process.
    A probe takes seconds; it runs once for each version of a driver.

    *here*: a function that runs the probe in this process if no child can be started. If *here* is None,
    return None in this case.
    """
    with _lock:
        found = _reports.get(c.key) or cache.read_json(_place(c), Verdict.parse) or _ask_and_keep(c, here)
        if found is not None:
            _reports[c.key] = found
            _look(c, found)
        return found


def ask_again(c: Capabilities, here: Callable[[], Verdict]) -> Verdict:
    """Probe the device again, replace the stored report, and return the new report. Time the kernels again
    if they are due (`first_sight.look`). *here*: see `report_of`."""
    with _lock:
        before = _reports.get(c.key) or cache.read_json(_place(c), Verdict.parse)
        found = _ask_and_keep(c, here, before)
        assert found is not None
        _reports[c.key] = found
        _look(c, found, again=True)
        return found


def _look(c: Capabilities, report: Verdict, again: bool = False) -> None:
    """Time the kernels of a usable device for which timing is due (`first_sight.is_due`)."""
    if report.refusal is None and first_sight.is_due(c, again):
        first_sight.look(c, dataclasses.asdict(report))


def believe(c: Capabilities, report: Verdict) -> None:
    """Make *report* the device's report in this process. A child process gets its parent's report in this
    way."""
    with _lock:
        _reports[c.key] = report


def known(c: Capabilities) -> Verdict | None:
    """Return the report that this process has of the device, or None. In a child process, return None."""
    return None if spawn.in_child() else _reports.get(c.key)


def with_choices(c: Capabilities) -> Capabilities:
    """Return the capabilities with the choices that were measured on the device. They include choices of
    kernels if the device has a report and VKQ_TUNE is not "off"."""
    found = known(c)
    choices = tuner.choices(tuner.stored(c).families if found else None)
    if found and found.cores and told_cores(c) is None:
        choices = (*choices, ("multiprocessors", found.cores))
    # Without measurements, return the same object: caches, whose keys are capabilities, find it by
    # identity, without comparing all fields.
    return dataclasses.replace(c, choices=choices) if choices != c.choices else c


def refusal(c: Capabilities) -> str | None:
    """Return the reason why the device must not be used, or None. In a child process, return None."""
    if spawn.in_child():
        return None
    found = report_of(c)
    return found.refusal if found else None


def verdict(results: Mapping[str, Any], failed: Mapping[str, str], isolated: bool) -> Verdict:
    """Return the report of a probe.

    - *results*: {completed stage: result}. The result of a test is an error text, or None if it passed.
    - *failed*: {stage that did not complete: reason}.
    - *isolated*: whether the probe ran in a child process."""
    own = (RATES, REQUANTIZE, SOFT, CONVERSIONS, LOOPS)
    failures = {name: str(said) for name, said in results.items() if said is not None and name not in own}
    failures |= {name: why for name, why in failed.items() if name not in own or name == LOOPS}
    silent = "the probe gave no result for it"
    plain, soft = (failed.get(name) or results.get(name, silent) for name in (REQUANTIZE, SOFT))
    if plain and soft and OPENING not in failures:
        failures[REQUANTIZE] = f"{soft} (and without SOFT_FLOAT: {plain})"
    rates = results.get(RATES) or {"per_second": {}, "clock": "", "cores": None}
    per_second, clock, cores = (rates[name] for name in ("per_second", "clock", "cores"))
    limit = results.get(LOOPS, LEAST_LOOPS)
    converts = CONVERSIONS in results and results[CONVERSIONS] is None
    return Verdict(failures, plain is not None, per_second, clock, isolated, cores, limit, converts)


def _place(c: Capabilities) -> Path:
    return cache.cache_dir() / "probe" / f"{c.key}-{__version__}-{FORMAT}.json"


def _ask_and_keep(
    c: Capabilities, here: Callable[[], Verdict] | None, before: Verdict | None = None
) -> Verdict | None:
    asked = _ask(c)
    if asked is not None:
        found, sure = asked
    elif here is not None:
        found, sure = here(), True
    else:
        return None
    found = _steady(found, before)
    if sure:
        _keep(c, found)
    return found


def _steady(found: Verdict, before: Verdict | None) -> Verdict:
    """Return the new report *found* with the rates of the earlier report *before*, unless the fastest
    arithmetic clearly changed (`CLEARLY`). So the load of other programs, which changes all rates, does not
    change the chosen path."""
    old = {form: rate for form, rate in before.rates.items() if form in FORMS} if before else {}
    new = {form: rate for form, rate in found.rates.items() if form in FORMS}
    if before is None or old.keys() != new.keys() or not old:
        return found
    best = max(old, key=lambda form: old[form])
    return (
        dataclasses.replace(found, rates=before.rates) if max(new.values()) < CLEARLY * new[best] else found
    )


def _keep(c: Capabilities, report: Verdict) -> None:
    cache.write(_place(c), json.dumps(dataclasses.asdict(report)).encode())


def _ask(c: Capabilities) -> tuple[Verdict, bool] | None:
    """Run the probe in child processes. Return (report, whether to store it), or None if no child process
    can probe this device."""
    first = _round(c, ())
    if first is None:
        return None
    bad = {stage for stage, one in first.items() if one.kind != "ok"}
    second: dict[str, _Outcome] = {}
    # Slow stages do not run again: each would take another minute.
    if any(first[stage].kind != "late" for stage in bad):
        second = (
            _round(c, [stage for stage in first if stage not in bad or first[stage].kind == "late"]) or {}
        )
    sure, found = True, {**second, **first}
    for stage in bad:
        one, two = first[stage], second.get(stage)
        if stage == OPENING and second and two is None:
            two = _Outcome("ok", None)  # in the second run, the device could be opened
        if one.kind != "wrong" and two is not None and two.kind == "ok":
            found[stage] = two
            sure = sure and one.kind != "crashed"
        else:
            sure = sure and one.kind in _VERDICTS and two is not None and two.kind in _VERDICTS
    if found.get(OPENING, _Outcome("", "")).kind == "ok":
        del found[OPENING]
    results = {stage: one.value for stage, one in found.items() if one.kind in ("ok", "wrong")}
    failed = {stage: one.value for stage, one in found.items() if one.kind not in ("ok", "wrong")}
    return verdict(results, failed, isolated=True), sure


def _round(c: Capabilities, skip: list[str] | tuple[()]) -> dict[str, _Outcome] | None:
    """Run the probe without the stages *skip*. Return {stage: outcome}, or None if no child process can be
    started or the index belongs to another device in the child."""
    found: dict[str, _Outcome] = {}
    expected = set(ALWAYS if not c.features["shaderIntegerDotProduct"] else (*ALWAYS, *FORMS))
    for _ in range(RESTARTS + 1):
        stages = [f"--skip={stage}" for stage in (*skip, *found)]
        ended = first_sight.child_of(c, "vkq.probe.child", TIMEOUT_S, *stages)
        if ended is None:
            return None
        stage = _told(ended, found, expected)
        if ended.kind == "done":
            silent = _Outcome("missing", "the probe gave no result for it")
            break
        found[stage] = silent = _Outcome(ended.kind, ended.reason)
        if stage == OPENING:
            return found
    return found | dict.fromkeys(expected - found.keys() - set(skip), silent)


def _told(ended: spawn.Ended, found: dict[str, _Outcome], expected: set[str]) -> str:
    """Add the outcomes in the messages of a child process to *found*, and the names of its stages to
    *expected*. Return the stage that was running when the child ended."""
    stage = OPENING
    for said in ended.said:
        expected.update(map(str, said.get("stages", ())))
        stage = str(said.get("begin", OPENING))
        if "end" in said:
            value = said.get("result")
            found[str(said["end"])] = _Outcome("wrong" if isinstance(value, str) else "ok", value)
    return stage
