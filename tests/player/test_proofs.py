"""Tests of proofs: libvkq records, in a file next to the pipeline cache, that a plan reproduced its known
answer. It does not run the known answer again until the file, the driver or the cache changes."""

import dataclasses
import json
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import vkq
import vkq.onnx
from tests.player.files import graph_of, only, product, rewritten
from tests.player.test_faults import LOST, MEMORY, OK, faults, turned
from tests.player.test_shapes import calls
from vkq.errors import DeviceError, DeviceLostError, OutOfMemoryError
from vkq.player.export import exported
from vkq.player.file import FilePlan, written
from vkq.player.load import PlayedModel

PROVEN = "known answer: not run again, this driver reproduced it for this file"
ROOT = Path(__file__).parents[2]
SHAPE = (3, 16)
X = {"x": np.arange(48, dtype=np.int8).reshape(SHAPE)}


class Loads:
    """Loads files with one pipeline cache."""

    def __init__(self, device: vkq.Device, folder: Path):
        self.opened, self.device = device, device.name
        self.path, self.cache = folder / "model.vkq", folder / "cache.bin"
        self.proofs = folder / "cache.bin.proven"
        self.want = vkq.onnx.InferenceSession(product(), device).run(None, X)[0]
        self.found = only(exported([graph_of(product(), {"x": SHAPE})], device)[0])
        self.write(rewritten(self.found))

    def write(self, data: bytes) -> None:
        self.path.write_bytes(data)

    def load(self) -> PlayedModel:
        return PlayedModel(self.path, self.device, str(self.cache))

    def checks(self) -> bool:
        """Load the file and run it twice; return True if its known answer was run."""
        with self.load() as model:
            for _ in range(2):
                np.testing.assert_array_equal(model.run(None, X)[0], self.want)
            return PROVEN not in model.explain()


@pytest.fixture
def loads(device: vkq.Device, tmp_path: Path) -> Loads:
    return Loads(device, tmp_path)


def wrong(plans: Sequence[FilePlan]) -> list[FilePlan]:
    """Return the plans with wrong known answers."""
    answers = [tuple(bytes(len(each)) for each in plan.answers) for plan in plans]
    return [dataclasses.replace(plan, answers=a) for plan, a in zip(plans, answers, strict=True)]


def test_it_is_run_once(loads: Loads) -> None:
    assert loads.checks()
    kept = loads.proofs.read_bytes()
    assert [loads.checks(), loads.checks()] == [False, False]
    assert loads.proofs.read_bytes() == kept


def test_without_a_cache_it_is_always_run_and_nothing_is_written(loads: Loads) -> None:
    for _ in range(2):
        with PlayedModel(loads.path, loads.device) as model:
            assert PROVEN not in model.explain()
    assert list(loads.path.parent.iterdir()) == [loads.path]


def test_another_file_is_checked(loads: Loads) -> None:
    """libvkq runs the known answer of a file that differs from proven files in any byte, even in a text. The
    proofs of all files are kept."""
    plans = [dataclasses.replace(plan, about="another") for plan in loads.found.plans]
    files = [rewritten(loads.found), rewritten(loads.found, plans=plans), written("another", [loads.found])]
    for data in files:
        loads.write(data)
        assert loads.checks()
    for data in files:
        loads.write(data)
        assert not loads.checks()


def test_another_driver_is_checked(loads: Loads) -> None:
    """With another driver, the known answer is run again, although this driver runs the same plan."""
    loads.write(rewritten(loads.found, plans=loads.found.plans[1:]))
    loads.checks()
    loads.device = "SwiftShader" if "llvmpipe" in loads.device else "llvmpipe"
    assert loads.checks()
    assert not loads.checks()


def test_another_build_of_a_driver_is_checked(any_device: vkq.Device, tmp_path: Path) -> None:
    """With another build of a driver, the known answer is run again. All builds of SwiftShader have the same
    version numbers, so the second build here differs only in its build ID."""
    loads = Loads(any_device, tmp_path)
    library = bytearray((ROOT / ".drivers/libvk_swiftshader.so").read_bytes())
    build_id = struct.pack("<3I4s", 4, 20, 3, b"GNU")
    assert library.count(build_id) == 1
    library[library.index(build_id) + len(build_id)] ^= 1
    (tmp_path / "other.so").write_bytes(library)
    icd = {"file_format_version": "1.0.0", "ICD": {"library_path": "./other.so", "api_version": "1.0.5"}}
    (tmp_path / "other.json").write_text(json.dumps(icd))
    code = f"import vkq; print(vkq.load({str(loads.path)!r}, cache={str(loads.cache)!r}).explain())"

    def proven(driver: Path) -> bool:
        environment = {**os.environ, "VK_DRIVER_FILES": str(driver), "VK_ICD_FILENAMES": str(driver)}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
        )
        return PROVEN in done.stdout

    first, other = ROOT / ".drivers/vk_swiftshader_icd.json", tmp_path / "other.json"
    assert [proven(first), proven(first)] == [False, True]
    assert [proven(other), proven(other), proven(first)] == [False, True, True]


def test_another_pipeline_cache_is_checked(loads: Loads) -> None:
    """After a change of the pipeline cache libvkq runs the known answer again. (Both drivers store only a
    header in the cache, and ignore bytes after it.)"""
    loads.checks()
    header = loads.cache.read_bytes()
    for content in (b"pipelines", b"Pipelines", b"pipelines" * 2):
        loads.cache.write_bytes(header + content)
        assert loads.checks()
    loads.cache.write_bytes(header)
    assert not loads.checks()


def test_damaged_proofs_are_none(loads: Loads) -> None:
    loads.checks()
    kept = loads.proofs.read_bytes()
    assert len(kept) == 8
    for at in range(8):
        loads.proofs.write_bytes(kept[:at] + bytes([kept[at] ^ 1]) + kept[at + 1 :])
        assert loads.checks()
        loads.proofs.write_bytes(kept[:at])
        assert loads.checks()
    loads.proofs.unlink()
    loads.proofs.mkdir()
    assert [loads.checks(), loads.checks()] == [True, True], "proofs that cannot be written"


def test_a_bounded_number_of_proofs_is_kept(loads: Loads) -> None:
    loads.proofs.write_bytes(os.urandom(8 * 1000))
    assert loads.checks()
    assert loads.proofs.stat().st_size == 8 * 256
    assert not loads.checks()


def test_a_wrong_answer_is_never_proven(loads: Loads) -> None:
    """A wrong answer is never stored as a proof: the first plan fails at each load. The next plan is proven
    at its first load."""
    this, portable = loads.found.plans
    loads.write(rewritten(loads.found, plans=[*wrong([this]), portable]))
    for proven in (False, True):
        with loads.load() as model:
            assert "this: not taken, its known answer comes out with other bytes" in model.explain()
            assert (PROVEN in model.explain()) == proven
    size = loads.proofs.stat().st_size
    loads.write(rewritten(loads.found, plans=wrong(loads.found.plans)))
    for _ in range(2):
        with pytest.raises(DeviceError, match="portable: not taken, its known answer"):
            loads.load()
    assert loads.proofs.stat().st_size == size


def test_each_set_of_shapes_has_its_own(loads: Loads) -> None:
    (x,), (y,) = loads.found.inputs, loads.found.outputs
    more = only(exported([graph_of(product(rows=5), {"x": (5, 16)})], loads.opened)[0])
    assert (more.inputs[0].name, more.outputs[0].name) == (x.name, y.name)
    loads.write(written("two", [loads.found, more]))
    assert loads.checks()
    for proven in (False, True):
        with loads.load() as model:
            assert PROVEN in model.explain()
            assert (PROVEN in model.explain({"x": (5, 16)})) == proven


def test_only_runs_submit(loads: Loads) -> None:
    """A load that does not run the known answer records commands but submits nothing. It records a separate
    command buffer for each long step, which takes three more Vulkan calls for each step after the first."""
    (model,) = exported([graph_of(turned(5), {"x": (2, 3, 4, 5)})], loads.opened, ("portable",))[1]
    (plan,), counts = model.plans, []
    for busy_ns in (0, 10**9):
        steps = [dataclasses.replace(step, busy_ns=busy_ns) for step in plan.steps]
        loads.write(rewritten(model, plans=[dataclasses.replace(plan, steps=tuple(steps))]))
        loads.load().close()
        counts.append(calls(lambda: loads.load().close()))
    assert counts[1] - counts[0] == 3 * (len(plan.steps) - 1) > 0


def test_faults(loads: Loads) -> None:
    """A Vulkan call fails in a load that does not run the known answer. The load returns an error, and the
    next load works."""
    loads.checks()
    for code, status in ((-2, MEMORY), (-4, LOST)):
        seen = list(faults(code, lambda: _status(loads)))
        assert len(seen) > 20
        assert set(seen) == {status}
        assert not loads.checks()


def _status(loads: Loads) -> int:
    try:
        loads.load().close()
    except OutOfMemoryError:
        return MEMORY
    except DeviceLostError:
        return LOST
    return OK
