"""Tests of the extension's objects with wrong arguments: they raise a clear exception and never crash.
`make sanitize` runs these tests under ASan and UBSan.

One child process runs all cases, each on its own device, and prints each outcome. So after a crash, the
output shows which case crashed.
"""

import os
import subprocess
import sys

import pytest

import vkq

ONE_WORD = "(u32([0]),) * 4"
FILL = "k.Plan([(None, [0], [2], b'', -1, [], 0, 0)], 1, {inputs}, [0], [], 0)"
CASES = {
    # case -> (code, name of the exception, or "" if the code raises none)
    "operation ended before it began": ("q.operation(q.chain).__exit__(None, None, None)", "DeviceError"),
    "operation ended twice": (
        "o = q.operation(q.chain); o.__enter__(); o.__exit__(); o.__exit__()", "DeviceError",
    ),
    "operation without its recording": ("q.operation(lambda: 1 / 0).__enter__()", "ZeroDivisionError"),
    "packing: words overflow in bytes": (f"k.Packing((1, 1, 1, 4), {ONE_WORD}, 3, 1 << 62)", "ValueError"),
    "packing: more words than the buffer": (
        f"k.Packing((1, 1, 1, 4), {ONE_WORD}, 3, 9).pack(np.zeros(16, np.uint8), four, 0, 0)",
        "ValueError",
    ),
    "packing: the sum of tables overflows": (
        "k.Packing((1, 1, 1, 4), (u32([2**32 - 1]), u32([1]), u32([0]), u32([0])), 3, 2**33)", "ValueError",
    ),
    "packing: elements overflow": (
        "big = np.broadcast_to(np.uint32(0), 2**16).copy();"
        " k.Packing((2**16,) * 4, (big, big, big, big[:2**14]), 3, 1)",
        "ValueError",
    ),
    "packing: an axis at the end of 32 bits": (
        "k.Packing((1, 1, 1, 2**32 - 1), (u32([0]), u32([0]), u32([0]), u32([])), 3, 4)", "ValueError",
    ),
    "packing: no such lane": (f"k.Packing((1, 1, 1, 4), {ONE_WORD}, -1, 4)", "ValueError"),
    "upload_packed to what the host does not see": (
        "staged.queue.upload_packed(hidden, word, four, 0)",
        "IndexError",
    ),
    "download_unpacked from what the host does not see": (
        "staged.queue.download_unpacked(hidden, word, four, 0)",
        "IndexError",
    ),
    "view of what the host does not see": ("hidden.view()", "IndexError"),
    "gather to what the host does not see": (
        "staged.queue.gather(hidden, [four])", "IndexError",
    ),
    "gather: too much": ("q.gather(q.pin(16), [np.zeros(4096, np.uint8)] * 5)", "IndexError"),
    "pin nothing": ("assert q.pin(0).bytes", ""),
    "pin 2**64 - 1": ("q.pin(2**64 - 1)", "OutOfMemoryError"),
    "pin 2**63": ("q.pin(2**63)", "OutOfMemoryError"),
    "allocate 2**64 - 1": ("arena.allocate(2**64 - 1)", "OutOfMemoryError"),
    "allocate 2**64 - 16": ("arena.allocate(2**64 - 16)", "OutOfMemoryError"),
    "allocate -1": ("arena.allocate(-1)", "TypeError"),
    "allocate 2**50": ("arena.allocate(2**50)", "OutOfMemoryError"),
    "scratch 2**64 - 1": ("q.scratch(2**64 - 1)", "OutOfMemoryError"),
    "recording: another device's buffer": ("q.fill(q.recording(0, 0), other.allocate(64), 1)", "ValueError"),
    "recording: a copy from another device": (
        "q.copy(q.recording(0, 0), other.allocate(64), dev.allocate(64), 64)", "ValueError",
    ),
    "recording of another queue": ("q.fill(other.queue.recording(0, 0), dev.allocate(64), 1)", "ValueError"),
    "another queue's recording is submitted": ("q.submit(other.queue.recording(0, 0))", "ValueError"),
    "another queue's recording is waited for": ("q.wait(other.queue.recording(0, 0))", "ValueError"),
    "upload to another device": ("q.upload(other.allocate(64), four)", "ValueError"),
    "download from another device": ("q.download(other.allocate(64), four)", "ValueError"),
    "plan with another device's buffer": (
        f"q.add({FILL.format(inputs=1)}, [other.allocate(64)], [])", "ValueError",
    ),
    "plan with another device's program": (
        "step = (other_program, [0, 0], [1, 2], b'\\0' * push, -1, [(0, 1, 1)], 0, 0);"
        " p = k.Plan([step], 1, 1, [0], [], 0);"
        " q.add(p, [dev.allocate(64)], [])",
        "ValueError",
    ),
    "set_arenas of another device": (
        "dev.context.set_arenas(other._memory.arena, 0, other._memory.staging, 0, 0)", "ValueError",
    ),
    "timestamps: one too many": ("r = q.recording(1, 0); [q.timestamp(r) for _ in range(9)]", "IndexError"),
    "2**32 - 1 marks": ("q.recording(2**32 - 1, 0)", "ValueError"),
    "2**31 timestamps": ("q.recording(0, 2**31)", "ValueError"),
    "timestamps of none": ("r = q.recording(0, 0); q.submit(r); q.wait(r); assert not r.timestamps()", ""),
    "repeat from beyond": ("q.repeat(q.recording(0, 0), 99, 3)", "IndexError"),
    "repeat from 2**64 - 1": ("q.repeat(q.recording(0, 0), 2**64 - 1, 3)", "IndexError"),
    "repeat 2**32 - 1 times": (
        "r = q.recording(0, 0); q.fill(r, dev.allocate(64), 1); q.repeat(r, 0, 2**32 - 1)", "ValueError",
    ),
    "submit twice": ("r = q.recording(0, 0); q.submit(r); q.submit(r)", "DeviceError"),
    "add after submit": (
        "r = q.recording(0, 0); q.submit(r); q.wait(r); q.fill(r, dev.allocate(64), 1)", "DeviceError",
    ),
    "copy too much": (
        "q.copy(q.recording(0, 0), dev.allocate(64), dev.allocate(1 << 20), 1 << 20)", "IndexError",
    ),
    "copy 2**64 - 1": (
        "q.copy(q.recording(0, 0), dev.allocate(64), dev.allocate(64), 2**64 - 1)", "IndexError",
    ),
    "download too much": ("q.download(dev.allocate(64), np.zeros(1 << 20, np.uint8))", "IndexError"),
    "upload too much": ("q.upload(dev.allocate(64), np.zeros(1 << 20, np.uint8))", "IndexError"),
    "plan: a step without slots": (
        "k.Plan([(None, [], [], b'', -1, [], 0, 0)], 0, 0, [], [], 0)",
        "ValueError",
    ),
    "plan: no such slot": ("k.Plan([(None, [7], [2], b'', -1, [], 0, 0)], 1, 0, [], [], 0)", "ValueError"),
    "plan: an empty slot": (f"q.add({FILL.format(inputs=0)}, [], [])", "ValueError"),
    "plan: 65536 slots": ("k.Plan([], 65536, 0, [], [], 0)", "ValueError"),
    "plan: a part beyond the scratch": ("k.Plan([], 1, 0, [], [(0, 8, 2**64 - 1)], 16)", "ValueError"),
    "plan: too many inputs": (f"q.add({FILL.format(inputs=1)}, [dev.allocate(64)] * 40, [])", "ValueError"),
    "plan: None for an input": (f"q.add({FILL.format(inputs=1)}, [None], [])", "ValueError"),
    "plan: None for an output": (f"q.add({FILL.format(inputs=1)}, [dev.allocate(64)], [None])", "ValueError"),
    "plan: no buffers": (f"q.add({FILL.format(inputs=1)}, [3], ['x'])", "TypeError"),
    "plan: no program": ("k.Plan([(3, [0], [2], b'', -1, [], 0, 0)], 1, 0, [], [], 0)", "TypeError"),
    "plan: bind beyond": ("k.Plan([], 1, 1, [0], [], 0).bind(5, dev.allocate(4))", "ValueError"),
    "program: no SPIR-V": ("dev.context.program('x', b'', 1, 0, [], 0, 0)", "ValueError"),
    "program: text": ("dev.context.program('x', b'abcd' * 5, 1, 0, [], 0, 0)", "ValueError"),
    "program: half a word": ("dev.context.program('x', spirv + b'x', 1, 0, [], 0, 0)", "ValueError"),
    "program: 99 bindings": ("dev.context.program('x', b'abcd' * 5, 99, 0, [], 0, 0)", "ValueError"),
    "program: 2**31 push constants": (
        "dev.context.program('x', spirv, 1, 2**31, [], 0, 0)", "ValueError",
    ),
    "buffer made of nothing": ("k.Buffer.__new__(k.Buffer).bytes", "TypeError"),
    "queue made of nothing": ("k.Queue.__new__(k.Queue).flush()", "TypeError"),
    "context of no handles": (
        "k.Context(instance, 0, 0, 0, 0, False, 0, 0, 'x')", "ValueError",
    ),
    "physical device 0": ("instance.properties(0)", "ValueError"),
    "extensions of physical device 0": ("instance.extensions(0)", "ValueError"),
    "core features of another size": (
        "instance.create_device(instance.physical_devices()[0], 0, [], b'', [])", "DeviceError",
    ),
    "compile on device 0": ("instance.compile(0, spirv, [], 0, [], 0, False)", "ValueError"),
    "destroy device 0": ("instance.destroy_device(0)", ""),
    "an extension that there is not": (
        "k.Instance([], ['VK_NO_such'], 0, [], 0)", "DeviceError",
    ),
    "plan after the device is closed": (
        f"p, b = {FILL.format(inputs=1)}, dev.allocate(64); dev.close(); q.add(p, [b], [])", "DeviceError",
    ),
    "view after the device is closed": (
        "v = q.pin(64).view(); dev.close(); v[:] = 7; assert v.sum() == 448", "",
    ),
    "write after the device is closed": (
        "b = q.pin(64); dev.close(); q.gather(b, [four])", "DeviceError",
    ),
    "a garbage cache": ("dev.context.load_cache(b'x' * 1000)", ""),
    "set_arenas of nothing": ("dev.context.set_arenas(None, 0, None, 0, 0)", "TypeError"),
    "arena of no such memory": (
        "dev.context.arena(31, True, 16, 1 << 20, 1 << 20, 0).allocate(16)", "DeviceError",
    ),
    "arena of type 2**32 - 1": (
        "dev.context.arena(2**32 - 1, True, 16, 1 << 20, 1 << 20, 0).allocate(16)", "DeviceError",
    ),
    "arena alignment 0": ("assert dev.context.arena(0, True, 0, 0, 0, 0).allocate(16).bytes == 16", ""),
    "arena alignment 2**63": ("dev.context.arena(0, True, 2**63, 0, 0, 0)", "ValueError"),
    "arena alignment 48": ("dev.context.arena(0, True, 48, 0, 0, 0)", "ValueError"),
    "arena blocks of 2**64 - 1": (
        "dev.context.arena(0, True, 16, 2**64 - 1, 2**64 - 1, 0).allocate(16)", "OutOfMemoryError",
    ),
    "no operations in a chain": ("q.operations_per_chain = 0; assert works()", ""),
    "no chains in flight": ("q.chains_in_flight = 0; assert works()", ""),
}  # fmt: skip
CHILD = """
import sys, faulthandler
import numpy as np
import vkq
from vkq.device.extension import native_module
from vkq.shader.catalog import catalog
faulthandler.enable()
k, u32, four = native_module(), lambda values: np.array(values, np.uint32), np.zeros(4, np.uint8)
word = k.Packing((1, 1, 1, 4), (u32([0]),) * 4, 3, 1)
name, spirv = sys.argv[1], b'\3\2\x23\7' * 5
instance = vkq.device.vulkan.instance().native
other, staged = vkq.Device(name), vkq.Device(name, staging=True)
hidden = staged.allocate(16)
variant = catalog().find("pack_q8__word")
push = 4 * len(variant.push_constants)
other_program = other.program(variant, {"LAYOUT": 0, "FLIP": 0}).native
for case, code in zip(sys.argv[2::2], sys.argv[3::2]):
    print("begin", case, flush=True)
    with vkq.Device(name) as dev:
        q, arena = dev.queue, dev._memory.arena
        x = vkq.Tensor.from_numpy(np.ones(8, np.float32), dev)
        works = lambda: vkq.quantize(x, vkq.QParams(1.0)).numpy().sum() == 8
        try:
            exec(code, dict(globals()))
            print("end", case, "")
        except Exception as error:
            assert str(error)
            print("end", case, type(error).__name__)
"""


def test_wrong_arguments_raise(any_device: vkq.Device) -> None:
    code = [text for case, (what, _) in CASES.items() for text in (case, what)]
    child = subprocess.run(
        [sys.executable, "-c", CHILD, any_device.name, *code],
        env={**os.environ, "VKQ_VALIDATION": "0"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = child.stdout.splitlines()
    if child.returncode or "ERROR: AddressSanitizer" in child.stderr or "runtime error" in child.stderr:
        pytest.fail(f"{lines[-1:]}: exit code {child.returncode}\n{child.stderr[-3000:]}")
    found = {case: line for case in CASES for line in lines if line.startswith(f"end {case} ")}
    wrong = {
        case: (found.get(case), want)
        for case, (_, want) in CASES.items()
        if found.get(case) != f"end {case} {want}"
    }
    assert not wrong
