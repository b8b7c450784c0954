"""Tests in which each Vulkan call of opening, loading and running fails in turn, with each Vulkan error.
libvkq returns an error, other open objects keep working, and the next attempt succeeds."""

import ctypes
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from onnx import TensorProto, helper

import vkq
from tests.player.files import graph_of, made, only, product
from vkq.player.export import exported
from vkq.player.load import check, library

OK, DEVICE, MEMORY, LOST = 0, 3, 4, 5
# VkResult -> libvkq's status. In order: out of host memory, out of device memory, device lost,
# initialization failed, mapping failed, extension missing, feature missing, unknown error, VK_TIMEOUT
# (which is positive, unlike errors).
STATUS = {
    -1: MEMORY, -2: MEMORY, -4: LOST, -3: DEVICE, -5: DEVICE, -7: DEVICE, -8: DEVICE, -13: DEVICE, 2: DEVICE
}  # fmt: skip
OPENS, RUNS = 6, 3  # number of Vulkan calls of vkq_open and of a run
LOADS = (57, 46, 45)  # number of Vulkan calls of a load, for each of the three `files`
CODES = [list(STATUS), list(STATUS), [-2, -4, -3]]  # injected error codes, for each of the three `files`
MANY = 1 << 20
Calls = Callable[[], int]


def turned(count: int) -> bytes:
    """Return a model of *count* transposes of one array: steps that use the same shader."""
    orders = list(itertools.permutations(range(4)))[1 : count + 1]
    nodes = [helper.make_node("Transpose", ["x"], [f"y{i}"], perm=axes) for i, axes in enumerate(orders)]
    shape = (2, 3, 4, 5)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    ys = [
        helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, [shape[axis] for axis in axes])
        for i, axes in enumerate(orders)
    ]
    return made(helper.make_graph(nodes, "turned", [x], ys))


class Player:
    """A device opened by libvkq, through its C functions alone."""

    def __init__(self, name: str):
        self.name, self.device = name.encode(), ctypes.c_void_p()
        check(self.open())

    def open(self) -> int:
        return int(library().vkq_open(self.name, ctypes.byref(self.device)))

    def close(self) -> None:
        library().vkq_close(self.device)
        self.device = ctypes.c_void_p()

    def load(self, data: bytes, model: ctypes.c_void_p) -> int:
        size = ctypes.c_uint64(len(data))
        return int(library().vkq_load_memory(self.device, data, size, None, ctypes.byref(model)))


class Played:
    """A file that a `Player` loads, and its known answer."""

    def __init__(self, player: Player, data: bytes):
        found = only(data)
        self.player, self.data, self.model = player, data, ctypes.c_void_p()
        self.answers = found.plans[-1].answers
        self.x = (ctypes.c_char_p * 1)(found.inputs[0].answer)
        self.ys = [ctypes.create_string_buffer(len(answer)) for answer in self.answers]

    def load(self) -> int:
        return self.player.load(self.data, self.model)

    def unload(self) -> None:
        library().vkq_unload(self.model)
        self.model = ctypes.c_void_p()

    def run(self) -> int:
        for y in self.ys:
            ctypes.memset(y, 0xA5, len(y))
        outputs = (ctypes.c_void_p * len(self.ys))(*map(ctypes.addressof, self.ys))
        return int(library().vkq_run(self.model, self.x, outputs))

    def right(self) -> bool:
        return self.run() == OK and tuple(y.raw for y in self.ys) == self.answers


@pytest.fixture(scope="module")
def files() -> list[bytes]:
    """Return three files: one with only a portable plan, of 23 steps; one with a plan for this device and a
    portable plan; and one with weights."""
    with vkq.Device("llvmpipe") as device:
        wanted = [(turned(23), (2, 3, 4, 5), "portable"), (turned(12), (2, 3, 4, 5), "this")]
        wanted += [(product(), (3, 16), "portable")]
        return [
            exported([graph_of(model, {"x": shape})], device, (kind,))[0] for model, shape, kind in wanted
        ]


def faults(code: int, call: Calls) -> Iterator[int]:
    """Run *call* several times: first its first Vulkan call fails, then its second, and so on. Yield the
    status of each run. End when no Vulkan call is left to fail."""
    for nth in range(1, MANY):
        library().vkq_inject(nth, code)
        status = call()
        if library().vkq_inject(0, 0):
            assert status == OK
            return
        yield status


@pytest.mark.parametrize("code", STATUS)
def test_opening(any_device: vkq.Device, code: int) -> None:
    player = Player(any_device.name)
    player.close()
    seen = []
    for status in faults(code, player.open):
        seen.append(status)
        assert not player.device
    player.close()
    assert seen == [STATUS[code]] * OPENS


class Tries:
    """Loads and runs a file, while a second file on the device (the witness) must keep working."""

    def __init__(self, name: str, witness: bytes, data: bytes):
        self.player = Player(name)
        self.witness, self.played = Played(self.player, witness), Played(self.player, data)
        self.reset()

    def reset(self) -> None:
        """Close the device, open it again, and load the witness."""
        self.close()
        check(self.player.open())
        check(self.witness.load())

    def close(self) -> None:
        self.played.unload()
        self.witness.unload()
        self.player.close()

    def after(self, status: int) -> None:
        """Check, after a call with this status, that the witness works. If the device is lost, first check
        that it stays lost, and open it again."""
        if status == LOST:
            self.played.unload()
            assert self.witness.run() == self.played.load() == LOST
            self.reset()
        assert self.witness.right()


def test_there_are_a_thousand() -> None:
    of_files = sum(len(codes) * (RUNS + loads) for codes, loads in zip(CODES, LOADS, strict=True))
    assert len(STATUS) * OPENS + of_files > 1000


@pytest.mark.parametrize(("number", "code"), [(i, code) for i, codes in enumerate(CODES) for code in codes])
def test_loading_and_running(any_device: vkq.Device, files: list[bytes], number: int, code: int) -> None:
    tries = Tries(any_device.name, files[0], files[number])
    two_plans, loads, runs = number == 1, 0, 0
    for status in faults(code, tries.played.load):
        loads += 1
        if status == OK:  # the fault was in the first plan, so the second plan was loaded
            assert two_plans
            assert b"failed with VkResult" in library().vkq_describe(tries.played.model)
            assert tries.played.right()
            tries.played.unload()
        else:
            assert status == STATUS[code]
            assert not tries.played.model
        tries.after(status)
    assert tries.played.right()
    for status in faults(code, tries.played.run):
        runs += 1
        assert status == STATUS[code]
        tries.after(status)
        if status == LOST:
            check(tries.played.load())
        assert tries.played.right()
    tries.close()
    assert (loads, runs) == (LOADS[number], RUNS)


def test_threads_take_turns(any_device: vkq.Device, files: list[bytes]) -> None:
    """Threads share a device: some load, run and unload models, and two run the same model. All answers are
    right."""
    player = Player(any_device.name)
    shared = [Played(player, files[2]), Played(player, files[2])]
    assert shared[0].load() == OK
    shared[1].model = shared[0].model

    def reloads(data: bytes) -> list[bool]:
        played, right = Played(player, data), []
        for _ in range(3):
            right.append(played.load() == OK and played.right() and played.right())
            played.unload()
        return right

    def runs(played: Played) -> list[bool]:
        return [played.right() for _ in range(30)]

    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(runs, one) for one in shared] + [pool.submit(reloads, one) for one in files[:2]]
    assert [all(one.result()) for one in done] == [True] * 4
    shared[0].unload()
    player.close()
