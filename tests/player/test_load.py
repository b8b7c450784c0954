"""Tests of loading files: the first plan that works gives the session's bytes; damage and faults are
errors."""

import ctypes
import dataclasses
import json
import os
import re
import runpy
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkq
import vkq.onnx
from tests.player.files import (
    EMBEDDED,
    OWN,
    check_bytes,
    graph_of,
    load_bytes,
    network,
    only,
    refused,
    rewritten,
    texts,
    tflite,
)
from vkq.accuracy import quantize_weights
from vkq.cli import main
from vkq.device.validation import LAYER
from vkq.errors import ArgumentError, DeviceError, DTypeError, ModelError
from vkq.player import reader
from vkq.player.export import exported
from vkq.player.file import BLOB, HEAD_AT, FileStep, Shaped, checksum
from vkq.player.load import library
from vkq.player.reader import contents

# first letters of a device's name -> the other test driver
OTHER = {"llvm": "SwiftShader", "Swif": "llvmpipe"}


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def digits() -> bytes:
    return (ROOT / "examples/models/digits.onnx").read_bytes()


def digits_file(digits: bytes, device: vkq.Device, kinds: tuple[str, ...] = ("this",)) -> bytes:
    return exported([graph_of(digits, {"x": (1, 1, 8, 8)})], device, kinds)[0]


# These are a few small networks. `python -m tests.player.all` exports and runs all networks.
@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("mobilenet_v3", "qdq_int8"),
        ("unet", "qoperator_uint8"),
        ("attention", "qdq_uint8"),
        ("mixed", "tflite"),
    ],
)
def test_the_bytes_of_the_session(device: vkq.Device, tmp_path: Path, name: str, form: str) -> None:
    model = tflite(name) if form == "tflite" else network(name, form, tmp_path)
    assert check_bytes(model, device, tmp_path) == (["this", OWN[device.name[:4]], "portable"], {})


@pytest.mark.parametrize("bits", [4, 8])
def test_weight_only_models_have_portable_plans(device: vkq.Device, tmp_path: Path, bits: int) -> None:
    """A file of a weight-only model has a plan for this device, and a portable plan that another driver
    plays. Results are within 1e-5 of the session's: kernels decide the order of float sums, so each plan
    has its own known answer."""
    path = tmp_path / "model.vkq"
    quantize_weights(ROOT / "examples/models/digits.float.onnx", tmp_path / "w.onnx", bits=bits)
    data, _ = exported([graph_of((tmp_path / "w.onnx").read_bytes(), {"x": (1, 1, 8, 8)})], device)
    path.write_bytes(data)
    x = {"x": np.random.default_rng(3).random((1, 1, 8, 8), np.float32)}
    (want,) = vkq.onnx.InferenceSession(tmp_path / "w.onnx", device).run(None, x)
    for name, kind in ((device.name, "this"), (OTHER[device.name[:4]], "portable")):
        with vkq.load(path, name) as played:
            assert played.explain().startswith(f"{kind}: ")
            np.testing.assert_allclose(played.run(None, x)[0], want, rtol=1e-5, atol=1e-5)


def test_token_ids(device: vkq.Device, tmp_path: Path) -> None:
    """A token id beyond the table's rows raises an error, and the next run gives the session's bytes."""
    session = vkq.onnx.InferenceSession(texts(), device)
    path = tmp_path / "model.vkq"
    path.write_bytes(exported([graph_of(texts(), {"ids": (1, 5)})], device)[0])
    ids = np.array([[0, 7, EMBEDDED - 1, 3, 3]])
    with vkq.load(path, device.name) as played:
        with pytest.raises(ArgumentError, match=rf"holds {EMBEDDED} at element 2; the model takes"):
            played.run(None, {"ids": np.where(ids == EMBEDDED - 1, EMBEDDED, ids)})
        np.testing.assert_array_equal(played.run(["y"], {"ids": ids})[0], session.run(None, {"ids": ids})[0])


def test_weights_that_another_plan_has_in_its_order(
    any_device: vkq.Device, digits: bytes, opened: ctypes.c_void_p, tmp_path: Path
) -> None:
    """A file stores weights once, although its plans read them in different orders. An order that reads
    beyond the stored weights raises an error."""
    plain = only(digits_file(digits, any_device, ("portable",)))
    (portable,) = plain.plans
    matrices = dataclasses.replace(
        portable, kind="matrices", needs=(("=vendorID", 1),),
        constants=tuple((slot, sixteen(data)) for slot, data in portable.constants),
    )  # fmt: skip
    assert matrices.constants != portable.constants
    data = rewritten(plain, plans=[matrices, portable])
    assert only(data).plans[1].constants == portable.constants
    assert len(data) < len(rewritten(plain)) + 4096, "weights stand twice"
    path = tmp_path / "model.vkq"
    path.write_bytes(data)
    x = {"x": np.random.default_rng(1).random((1, 1, 8, 8), np.float32)}
    with vkq.load(path, any_device.name) as played:
        assert played.explain().startswith("portable: ")
        want = vkq.onnx.InferenceSession(digits, any_device).run(None, x)[0]
        np.testing.assert_array_equal(played.run(None, x)[0], want)
    size = max(len(data) for _, data in portable.constants) // 4
    order = struct.pack("<3I", size // 16, 4, 4)
    assert data.count(order) == 1
    at = data.index(order)
    for sizes in ((size // 16, 4, 5), (size // 16 + 1, 4, 4), (size, 4, 4), (0, 4, 4)):
        bad = bytearray(data)
        bad[at : at + 12] = struct.pack("<3I", *sizes)
        refused(opened, bytes(bad), "a constant's order reads beyond its blob")
    for strides in ((16, 1, 5), (1 << 31, 1, 4), (16, size, 4)):
        bad = bytearray(data)
        bad[at + 20 : at + 32] = struct.pack("<3I", *strides)
        refused(opened, bytes(bad), "a constant's order reads beyond its blob")


def sixteen(data: bytes) -> bytes:
    """Return the words with each block of 4 x 4 words transposed. If the number of words is no multiple of
    16, return them unchanged."""
    words = np.frombuffer(data, np.uint32)
    return words.reshape(-1, 4, 4).transpose(0, 2, 1).tobytes() if words.size % 16 == 0 else data


def test_written_twice_is_the_same(any_device: vkq.Device, digits: bytes) -> None:
    first = digits_file(digits, any_device)
    assert first == digits_file(digits, any_device)
    found = only(first)
    assert rewritten(found) == first
    assert [plan.kind for plan in found.plans] == ["this", "portable"]


def test_another_device_takes_the_portable_plan(
    any_device: vkq.Device, digits: bytes, tmp_path: Path
) -> None:
    other = vkq.Device("SwiftShader")
    path = tmp_path / "model.vkq"
    path.write_bytes(digits_file(digits, any_device))
    x = np.random.default_rng(1).random((1, 1, 8, 8), np.float32)
    with vkq.load(path, other.name) as played:
        assert played.explain().startswith("portable: ")
        assert "this: not taken, it needs vendorID = " in played.explain()
        want = vkq.onnx.InferenceSession(digits, any_device).run(None, {"x": x})[0]
        np.testing.assert_array_equal(played.run(None, {"x": x})[0], want)
    other.close()


def test_a_plan_for_a_device_that_a_file_describes(
    any_device: vkq.Device, digits: bytes, tmp_path: Path
) -> None:
    """A plan exported for a described device (capabilities in a file) is used on that device, and gives the
    session's bytes. Another device uses the portable plan."""
    other = vkq.Device("SwiftShader")
    described, path = tmp_path / "phone.json", tmp_path / "model.vkq"
    described.write_text(json.dumps({"devices": [{"capabilities": other.capabilities.as_dict()}]}))
    path.write_bytes(digits_file(digits, any_device, (str(described),)))
    assert [plan.kind for plan in only(path.read_bytes()).plans] == ["phone", "portable"]
    x = np.random.default_rng(1).random((1, 1, 8, 8), np.float32)
    want = vkq.onnx.InferenceSession(digits, any_device).run(None, {"x": x})[0]
    for name, kind in ((other.name, "phone"), (any_device.name, "portable")):
        with vkq.load(path, name) as played:
            assert played.explain().startswith(f"{kind}: ")
            np.testing.assert_array_equal(played.run(None, {"x": x})[0], want)
    other.close()
    for text in ("{}", '{"devices": [{"capabilities": {"name": "x"}}]}', "[1]"):
        described.write_text(text)
        with pytest.raises(ArgumentError, match=r"phone.json: it is not a file of `vkq devices --json`"):
            digits_file(digits, any_device, (str(described),))


def is_not_taken(found: Shaped, path: Path, device: vkq.Device, **changes: Any) -> bool:
    """Return True if, after *changes* to the file's first plan, loading rejects this plan because its known
    answer differs."""
    first, *rest = found.plans
    path.write_bytes(rewritten(found, plans=[dataclasses.replace(first, **changes), *rest]))
    with vkq.load(path, device.name) as played:
        return "this: not taken, its known answer comes out with other bytes" in played.explain()


def test_a_plan_that_answers_wrongly_is_not_taken(
    any_device: vkq.Device, digits: bytes, tmp_path: Path
) -> None:
    """If a weight of a plan is changed, the plan does not reproduce its known answer, and the next plan is
    used."""
    found = only(digits_file(digits, any_device))
    first, path = found.plans[0], tmp_path / "model.vkq"
    slot, weights = max(first.constants, key=lambda one: len(one[1]))
    wrong = bytes([weights[0] ^ 0x40]) + weights[1:]
    changed = tuple((s, wrong if s == slot else data) for s, data in first.constants)
    assert is_not_taken(found, path, any_device, constants=changed)
    plans = [dataclasses.replace(plan, answers=(bytes(40),)) for plan in found.plans]
    path.write_bytes(rewritten(found, plans=plans))
    with pytest.raises(
        DeviceError, match=r"no plan of the file runs on .*\n.*\nportable: not taken, its known"
    ):
        vkq.load(path, any_device.name)


def test_a_plan_that_is_right_in_its_first_run_alone_is_not_taken(
    any_device: vkq.Device, digits: bytes, tmp_path: Path
) -> None:
    """A plan whose last step overwrites weights reproduces its known answer only in the first run, and is
    not used."""
    found = only(digits_file(digits, any_device))
    first = found.plans[0]
    slot, _ = max(first.constants, key=lambda one: len(one[1]))
    spoils = FileStep(None, ((slot, 2),), b"", -1, (), 0)
    assert is_not_taken(found, tmp_path / "model.vkq", any_device, steps=(*first.steps, spoils))


# -------------------------------------------------------------------------------------------- hostile files


def test_damage_anywhere_is_seen(any_device: vkq.Device, digits: bytes, opened: ctypes.c_void_p) -> None:
    data = digits_file(digits, any_device)
    random = np.random.default_rng(2)
    for at in [*range(0, 64, 5), *random.integers(64, len(data), 60)]:
        broken = bytearray(data)
        broken[at] ^= int(random.integers(1, 256))
        with pytest.raises(ModelError):
            contents(bytes(broken))
        assert load_bytes(opened, bytes(broken)) == 2, at
    for size in (0, 7, 39, 40, 4096, len(data) - 64):
        assert load_bytes(opened, data[:size]) == 2, size


def test_changes_that_cancel_in_a_sum_are_seen(
    any_device: vkq.Device, digits: bytes, opened: ctypes.c_void_p
) -> None:
    """The checksum detects changes of two words that cancel in a sum, also in sums weighted by position,
    and two swapped words."""
    words = np.frombuffer(digits_file(digits, any_device), "<u8")
    other = np.flatnonzero(words != words[100])[-1]
    pair = np.array([100, other])
    # Add weight(j) to word i and subtract weight(i) from word j. This does not change the sum of weight(i) *
    # word(i). The weight is 1, 2 i + 1 or i + 1, with i counted from byte 40.
    for weights in ((1, 1), 2 * pair[::-1] - 9, pair[::-1] - 4):
        broken = words.copy()
        broken[pair] += np.array(weights, np.int64).astype(np.uint64) * np.array([1, 2**64 - 1], np.uint64)
        assert load_bytes(opened, broken.tobytes()) == 2
    broken = words.copy()
    broken[pair] = broken[pair[::-1]]
    assert load_bytes(opened, broken.tobytes()) == 2


def test_blobs_that_lie_on_another_or_never_end_are_refused(
    any_device: vkq.Device, digits: bytes, opened: ctypes.c_void_p, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with overlapping blobs raises an error. The Python reader also refuses a file whose packed
    parts unpack to more than its limit. So the size of a file bounds the unpacked data."""
    data = bytearray(digits_file(digits, any_device))
    (producer,) = struct.unpack_from("<I", data, HEAD_AT)
    first = HEAD_AT + 4 + producer + 4
    second = first + struct.calcsize("<" + BLOB)
    at, stored, length, packing = struct.unpack_from("<" + BLOB, data, second)
    struct.pack_into("<" + BLOB, data, second, *struct.unpack_from("<" + BLOB, data, first))
    refused(opened, bytes(data), "a blob lies outside of it, or on another")
    struct.pack_into("<" + BLOB, data, second, at, stored, length, packing)
    monkeypatch.setattr(reader, "MOST_UNPACKED", 1000)
    with pytest.raises(ModelError, match=rf"bytes; at most {len(data) + 1000} are allowed"):
        contents(bytes(data))


def test_a_head_of_any_bytes_is_read_within_its_bounds(
    any_device: vkq.Device, digits: bytes, opened: ctypes.c_void_p
) -> None:
    """Up to three bytes of a file's head are changed, and the checksum fits. libvkq must refuse the file
    without reading beyond its end. No plan can run, because each requires a vendor that does not exist."""
    found = only(digits_file(digits, any_device))
    plans = [dataclasses.replace(plan, needs=(("=vendorID", 1),)) for plan in found.plans]
    data = np.frombuffer(rewritten(found, plans=plans), np.uint8)
    (head,) = struct.unpack_from("<Q", data.tobytes(), 8)
    random, seen = np.random.default_rng(3), set()
    for _ in range(400):
        broken = data.copy()
        for at in HEAD_AT + random.integers(0, head, random.integers(1, 4)):
            broken[at] = random.choice([0, 1, 127, 128, 255, int(random.integers(256))])
        broken[24:32] = np.frombuffer(struct.pack("<Q", checksum(broken[HEAD_AT:])), np.uint8)
        status = load_bytes(opened, broken.tobytes())
        assert status in (2, 3)
        seen.add(status)
    assert seen == {2, 3}


def test_what_a_run_refuses(any_device: vkq.Device, digits: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.vkq"
    path.write_bytes(digits_file(digits, any_device, ("portable",)))
    x = np.zeros((1, 1, 8, 8), np.float32)
    with vkq.load(path, any_device.name) as played:
        assert played.device == any_device.name
        with pytest.raises(ArgumentError, match=r"there are no outputs \['z'\]"):
            played.run(["z"], {"x": x})
        with pytest.raises(ArgumentError, match="the model takes"):
            played.run(None, {})
        with pytest.raises(ArgumentError, match=r"shape \(8, 8\); the file takes \(1, 1, 8, 8\)"):
            played.run(None, {"x": x[0, 0]})
        with pytest.raises(DTypeError, match="float64; it must be float32"):
            played.run(None, {"x": x.astype(np.float64)})
    with pytest.raises(DeviceError, match="closed"):
        played.run(None, {"x": x})
    with pytest.raises(ModelError, match="cannot be opened"):
        vkq.load(tmp_path / "none.vkq", any_device.name)
    with pytest.raises(DeviceError, match=r"(?s)no device of Vulkan 1.1 is named nowhere; there are:.*0: "):
        vkq.load(path, "nowhere")
    path.write_bytes(b"VKQFILE4" + path.read_bytes()[8:])
    with pytest.raises(ModelError, match="another version of vkq: export the model again"):
        vkq.load(path, any_device.name)
    assert main(["inspect", str(path)]) == 2
    path.write_bytes(digits)
    with pytest.raises(ModelError, match="file of vkq export"):
        vkq.load(path, any_device.name)


def test_the_driver_s_cache_is_kept(any_device: vkq.Device, digits: bytes, tmp_path: Path) -> None:
    path, cache = tmp_path / "model.vkq", tmp_path / "cache.bin"
    path.write_bytes(digits_file(digits, any_device, ("portable",)))
    vkq.load(path, any_device.name, str(cache)).close()
    first = cache.read_bytes()
    cache.write_bytes(b"another driver's" * 8)
    vkq.load(path, any_device.name, str(cache)).close()
    assert len(cache.read_bytes()) == len(first) >= 32
    before = cache.stat()
    vkq.load(path, any_device.name, str(cache)).close()
    assert cache.stat().st_ino == before.st_ino, "written again, though no pipeline came to it"


def test_a_file_may_be_replaced_while_it_plays(any_device: vkq.Device, digits: bytes, tmp_path: Path) -> None:
    """Replacing a file while it is loaded does not change results, because the old file stays mapped."""
    path, other = tmp_path / "model.vkq", tmp_path / "other.vkq"
    path.write_bytes(digits_file(digits, any_device, ("portable",)))
    x = {"x": np.random.default_rng(1).random((1, 1, 8, 8), np.float32)}
    with vkq.load(path, any_device.name) as played:
        want = played.run(None, x)[0]
        other.write_bytes(b"no model")
        other.replace(path)
        np.testing.assert_array_equal(played.run(None, x)[0], want)


def built(source: str, folder: Path) -> Path:
    """Compile an example against vkq's header and link it with libvkq. Under `make sanitize`, link it with
    the static library that has sanitizers."""
    native, program = Path(library()._name).parent, folder / "program"
    link = ["-L", str(native), "-lvkq", f"-Wl,-rpath,{native}"]
    if sanitized := os.environ.get("VKQ_SANITIZED_LIBVKQ"):
        link = [sanitized, "-fsanitize=address,undefined", "-lstdc++", "-lm", "-ldl", "-pthread"]
    compiler = ["cc", "-std=c99"] if source.endswith(".c") else ["c++", "-std=c++17"]
    build = [*compiler, "-Wall", "-Wextra", "-Werror", str(ROOT / "examples/c" / source)]
    build += ["-I", str(ROOT / "vkq/player/native"), *link, "-o", str(program)]
    subprocess.run(build, check=True)
    return program


def called(program: Path, path: Path, device: vkq.Device, given: bytes) -> tuple[bytes, str]:
    """Run a program under the validation layer and return its outputs (stdout, stderr). The layer must be
    active and report nothing."""
    layers = {"VK_INSTANCE_LAYERS": LAYER, "VK_LOADER_DEBUG": "layer"}
    environment = {**os.environ, "VKQ_DEVICE": device.name, **layers}
    done = subprocess.run([program, path], input=given, capture_output=True, check=True, env=environment)
    told = done.stderr.decode()
    assert re.search(rf"Insert instance layer \"?{LAYER}", told)
    assert b"VUID" not in done.stdout
    assert "VUID" not in told
    return done.stdout, told


def test_in_c(device: vkq.Device, digits: bytes, tmp_path: Path) -> None:
    path, program = tmp_path / "digits.vkq", built("digit.c", tmp_path)
    path.write_bytes(digits_file(digits, device))
    known = np.load(ROOT / "examples/models/digits.npz")
    for label in (3, 6):
        image = known["images"][known["labels"] == label][0]
        said, _ = called(program, path, device, b" ".join(b"%d" % pixel for pixel in image.reshape(-1)))
        assert said.splitlines()[-1] == b"digit %d" % label, said
        assert b"this: " in said


def test_in_python(
    device: vkq.Device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["08_file.py", device.name])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "examples/08_file.py"), run_name="__main__")
    assert not ended.value.code
    assert "the bytes of the session\n" in capsys.readouterr().out


def test_in_cpp(device: vkq.Device, tmp_path: Path) -> None:
    """The C++ example gives the session's bytes for an image of 33 x 50 pixels."""
    model, shape = (ROOT / "examples/models/denoise.onnx").read_bytes(), (1, 3, 33, 50)
    path, program = tmp_path / "denoise.vkq", built("denoise.cpp", tmp_path)
    path.write_bytes(exported([graph_of(model, {"x": shape})], device)[0])
    pixels = np.random.default_rng(5).integers(0, 256, (33, 50, 3), np.uint8)
    said, told = called(program, path, device, b"P6\n50 33\n255\n" + pixels.tobytes())
    assert "this: " in told
    x = (pixels.transpose(2, 0, 1)[None] / np.float32(255)).astype(np.float32)
    (y,) = vkq.onnx.InferenceSession(model, device).run(None, {"x": x})
    want = np.floor(255 * y[0].clip(0, 1) + np.float32(0.5)).astype(np.uint8).transpose(1, 2, 0)
    assert said == b"P6\n50 33\n255\n" + want.tobytes()
    environment = {**os.environ, "VKQ_DEVICE": device.name}
    small = b"P6\n2 1\n255\n" + bytes(6)
    done = subprocess.run([program, path], input=small, capture_output=True, check=False, env=environment)
    refusal = b"denoise: the file does not hold the shapes x=1x3x1x2; it holds x=1x3x33x50\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", refusal)
