"""Tests of the plans for the kinds of devices that vkq ships: which devices accept them, and their
results."""

from pathlib import Path
from typing import Any

import pytest

import vkq
from tests.player.files import OWN, SAME, graph_of, lacks, of_any_vendor, rewritten
from vkq.cli import main
from vkq.device.reported import NAMES
from vkq.errors import ArgumentError
from vkq.player.export import CONTROLS, exported
from vkq.player.file import Shaped

MODEL = Path(__file__).parents[2] / "examples/models/digits.onnx"
# driver -> kind -> the requirement of the kind's plan that the driver does not meet, or None if the driver
# runs the plan. If several kinds share a plan, only one of these kinds is listed.
ROUNDING, DENORMALS = "shaderRoundingModeRTEFloat32", "shaderDenormPreserveFloat32"
OTHERS = {
    "llvm": {
        "nvidia-h200": "vendorID",
        "adreno-640": None, "adreno-650": None, "adreno-740": None, "mali-g52": None, "swiftshader": None,
        "radv-gfx1030": DENORMALS, "videocore-4.2": DENORMALS,
    },
    "Swif": {
        "nvidia-h200": "vendorID",
        "adreno-640": ROUNDING, "adreno-650": ROUNDING, "adreno-740": ROUNDING, "lavapipe": ROUNDING,
        "mali-g52": None, "radv-gfx1030": ROUNDING, "videocore-4.2": ROUNDING,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def graph() -> Any:
    return graph_of(MODEL.read_bytes(), {"x": (1, 1, 8, 8)})


@pytest.fixture(scope="module")
def shipped(graph: Any) -> Shaped:
    """Return the digits model exported for every kind, planned on one driver."""
    with vkq.Device("llvmpipe") as device:
        return exported([graph], device, NAMES)[1][0]


def test_plans_that_ask_for_more_stand_first(shipped: Shaped) -> None:
    kinds = [plan.kind for plan in shipped.plans]
    assert sorted(kinds[:-1]) == sorted(NAMES)
    assert kinds[-1] == "portable"
    assert kinds[0] == "nvidia-h200"  # the kind with matrix units comes first
    for plan in shipped.plans:
        same = {name for name, _ in plan.needs if name in SAME}
        assert same == {"nvidia-h200": set(SAME), "portable": set()}.get(plan.kind, {"=vendorID"}), plan.kind
    needs = dict(next(plan for plan in shipped.plans if plan.kind == "adreno-740").needs)
    assert needs["shaderIntegerDotProduct"] == needs["shaderRoundingModeRTEFloat32"] == 1
    assert kinds.index("adreno-740") < kinds.index("adreno-640")


def test_a_driver_takes_the_plan_of_its_kind(device: vkq.Device, shipped: Shaped, tmp_path: Path) -> None:
    path = tmp_path / "digits.vkq"
    path.write_bytes(rewritten(shipped))
    with vkq.load(path, device.name) as played:
        assert played.explain().startswith(f"{OWN[device.name[:4]]}: ")
        assert "nvidia-h200: not taken, it needs vendorID = 4318" in played.explain()


def test_plans_of_other_kinds_give_the_same_bytes(
    device: vkq.Device, shipped: Shaped, tmp_path: Path
) -> None:
    """Without the requirement of a vendor, a software driver runs each plan whose other requirements it
    meets. So this test runs the shaders and steps of phones. Each plan must give the known answer, which the
    exporting session computed."""
    own = OWN[device.name[:4]]
    bodies = {(plan.programs, plan.steps): of_any_vendor(plan) for plan in reversed(shipped.plans[:-1])}
    plans = [plan for plan in bodies.values() if plan.kind != own]
    assert {plan.kind: lacks(shipped, plan, device, tmp_path) for plan in plans} == OTHERS[device.name[:4]]


def test_float_controls_are_a_need(shipped: Shaped) -> None:
    """A plan requires float controls if and only if one of its SPIR-V modules uses them: such a module is
    invalid for drivers without float controls."""
    for plan in shipped.plans:
        asks = any(b"SPV_KHR_float_controls" in program.spirv for program in plan.programs)
        assert asks == any(name in CONTROLS for name, _ in plan.needs), plan.kind


def test_kinds_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["export", "--for", "list"])
    assert ended.value.code == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == ["this", *NAMES]
    assert "turnip Mesa driver Mesa 25.0.7" in next(line for line in said if line.startswith("adreno-740"))


def test_an_unknown_kind(any_device: vkq.Device, graph: Any) -> None:
    with pytest.raises(
        ArgumentError, match=r"neither a kind nor a file 'adreno-74'; did you mean 'adreno-740'"
    ):
        exported([graph], any_device, ("adreno-74",))
