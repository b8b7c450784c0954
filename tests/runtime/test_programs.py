"""Tests of pipelines that are compiled in parallel inside a `with` block: all are ready at its end, and a
failure is reported and not cached."""

import threading
from collections.abc import Iterator

import pytest

import vkq
from tests.runtime import work
from tests.runtime.work import OUT_OF_DEVICE_MEMORY, counted, failing
from vkq.runtime.program import code
from vkq.runtime.programs import ParallelCompilation
from vkq.shader.catalog import catalog
from vkq.shader.compile import spirv
from vkq.shader.reflect import reflect
from vkq.shader.spec import Variant


@pytest.fixture
def fresh(device: vkq.Device) -> Iterator[vkq.Device]:
    """Yield a device on which no pipeline was made."""
    with vkq.Device(device.name) as one:
        yield one


def variants() -> list[Variant]:
    """Return a few small shaders."""
    names = [name for name in sorted(catalog().shaders) if name.startswith(("quantize", "dequantize"))]
    return [catalog().shaders[name].variants[0] for name in names][:3]


def test_all_are_there_at_the_end_and_the_count_is_told(fresh: vkq.Device) -> None:
    told: list[tuple[int, int]] = []
    with fresh.programs.together(lambda made, count: told.append((made, count))):
        programs = [fresh.program(variant) for variant in variants()]
        assert fresh.program(variants()[0]) is programs[0], "asked for again while it is made"
    count = len(programs)
    assert count >= 2
    assert told == [(i, count) for i in range(1, count + 1)]
    assert all(program.native is not None for program in programs)
    with failing("vkCreateComputePipelines", 0):
        assert [fresh.program(variant) for variant in variants()] == programs
        assert counted() == 0


def test_one_that_fails_is_told_and_made_again_when_it_is_asked_for_again(fresh: vkq.Device) -> None:
    variant = variants()[0]
    with failing("vkCreateComputePipelines", 1):
        with pytest.raises(vkq.OutOfMemoryError) as caught, fresh.programs.together():
            program = fresh.program(variant)
        assert (caught.value.result, caught.value.call) == (OUT_OF_DEVICE_MEMORY, "vkCreateComputePipelines")
        with pytest.raises(vkq.OutOfMemoryError):
            _ = program.native
    assert fresh.program(variant).native is not None


def test_a_plan_compiles_nothing_and_the_first_run_each_pipeline_once(fresh: vkq.Device) -> None:
    one = work.conv2d(fresh)
    with failing("vkCreateComputePipelines", 0):
        assert one.layer.explain(one.x.shape).variants
        assert counted() == 0
        one.check()
        made = counted()
        assert made > 0
        one.check()
        assert counted() == made


def test_a_block_compiles_once_what_was_planned_before(fresh: vkq.Device) -> None:
    chosen, told = variants(), list[tuple[int, int]]()
    planned = [fresh.program(variant) for variant in chosen]
    with failing("vkCreateComputePipelines", 0):
        with fresh.programs.together(lambda made, count: told.append((made, count))):
            for variant in chosen * 3:
                fresh.program(variant)
        assert counted() == len(chosen)
        assert all(program.native is not None for program in planned)
        assert counted() == len(chosen)
    assert told[-1] == (len(chosen), len(chosen))


def test_a_pipeline_that_failed_is_tried_again(fresh: vkq.Device) -> None:
    program = fresh.program(variants()[0])
    with failing("vkCreateComputePipelines", 1), pytest.raises(vkq.OutOfMemoryError):
        _ = program.native
    assert program.native is not None


def test_a_refusal_is_told_where_it_is_asked_for(any_device: vkq.Device) -> None:
    variant = catalog().shaders["gemm_q8ta_q8csw__coopmat"].variants[0]
    with any_device.programs.together(), pytest.raises(vkq.PathError, match="cooperativeMatrix"):
        any_device.program(variant)


def test_what_the_block_raises_is_not_hidden_by_a_pipeline_that_fails() -> None:
    begun = threading.Event()

    def fail() -> None:
        begun.set()
        raise vkq.DeviceError("no pipeline")

    def block() -> None:
        with ParallelCompilation() as together:
            together.submit(fail)
            begun.wait()
            raise KeyError("of the block")

    with pytest.raises(KeyError):
        block()


def test_they_are_made_while_the_block_goes_on() -> None:
    """Pipelines are compiled while the block runs. Here the block waits for submitted work. If this work
    began only at the end of the block, the wait would fail."""
    done = threading.Event()
    with ParallelCompilation() as together:
        together.submit(done.set)
        assert done.wait(10)


def given(name: str, device: vkq.Device, **constants: int) -> tuple[Variant, dict[int, int]]:
    """Return (the variant, the specialization constants that are left to the driver)."""
    variant = catalog().variants[name]
    module, others = code(variant, spirv(variant), variant.constants(constants), device.capabilities)
    assert set(reflect(module).specialization) <= {number for number, _ in others}
    return variant, dict(others)


def test_sizes_are_literals_and_numbers_of_a_problem_are_not(device: vkq.Device) -> None:
    """Sizes of a variant become literals. Parameters of a problem do not, because SwiftShader unrolls loops
    with a literal trip count: for 7 x 2 taps, this took 90 seconds."""
    for name, own in (("conv2d_q8csw__depthwise:texels", "KW"), ("conv2d_q8csw__direct:4x4.float32", "KW")):
        variant, others = given(name, device, **{own: 7})
        sizes = {c.id for c in variant.specialization.values() if c.declared is not None}
        assert others[variant.specialization[own].id] == 7
        assert sizes.isdisjoint(others)


def test_choices_are_literals(device: vkq.Device) -> None:
    """Constants that choose between code paths become literals, because otherwise SwiftShader compiles the
    code of all paths."""
    for name, left in (
        ("gemm_q8ta_q8csw__tiled:float.q8to.8x8", {"LOCAL_X", "LOCAL_Y"}),
        ("binary_q8__word:table.same", {"LOCAL_X", "LANE_AXIS"}),
        ("max_pool_q8__pixels:4w4c", {"LOCAL_X", "ASIDE", "KERNEL", "STRIDE", "THREADS"}),
    ):
        variant, others = given(name, device)
        assert {name for name, c in variant.specialization.items() if c.id in others} == left
