"""Check arrays that are too large for the test suite, and more calls than the test suite makes.

    python benchmarks/large_arrays.py [--device NAME] [--bytes 3000000000] [--calls 20000] [--json FILE]

Arrays of every kind are uploaded, downloaded and compared. Then a convolution and a copy are called with
changing sizes, and the allocated memory is printed. Needs host memory for four of the arrays and device
memory for one array."""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import vkq

RNG = np.random.default_rng(0)
PAGE = os.sysconf("SC_PAGE_SIZE")


def kinds(size: int, folder: str) -> Iterator[tuple[str, Any]]:
    """Yield int32 and int8 arrays of *size* bytes each, in every kind of memory and layout."""
    some = np.arange(min(1 << 20, size // 4), dtype=np.uint32) * np.uint32(2654435761)
    data = np.tile(some, -(-size // some.nbytes)).view(np.int8)[: size // 6400 * 6400]
    words, path = data.view(np.int32), os.path.join(folder, "words")
    frozen = words.view()
    frozen.flags.writeable = False
    yield "contiguous", words
    yield "every second column", words.reshape(-1, 100)[:, ::2]
    yield "reversed", words[::-1]
    yield "read-only", frozen
    yield "big-endian", words.view(">i4")
    yield "packed", data.reshape(-1, 64, 10, 10)
    data.tofile(path)
    yield "memory-mapped", np.memmap(path, np.int32, "r")


def there_and_back(device: vkq.Device, size: int) -> dict[str, Any]:
    """Return the seconds of the upload and of the download of each kind of array, after a check that the
    downloaded array equals the uploaded one."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, array in kinds(size, folder):
            start = time.perf_counter()
            tensor = vkq.Tensor.from_numpy(array, device)
            device.synchronize()
            up = time.perf_counter()
            back = tensor.numpy()
            down = time.perf_counter()
            assert back.dtype == array.dtype.newbyteorder("="), name
            assert np.array_equal(back, array), name
            found[name] = {"bytes": array.nbytes, "up_s": up - start, "down_s": down - up}
            print(f"{name:20s} {array.nbytes} bytes, equal: up {up - start:.2f} s, down {down - up:.2f} s")
            del tensor, back, array
    return found


def changing_sizes(device: vkq.Device, calls: int) -> list[dict[str, int]]:
    """Return the allocated memory after a tenth, after half and after all of the calls."""
    q = vkq.QParams(0.05, 3)
    weight = RNG.integers(-127, 128, (16, 8, 3, 3), np.int8)
    conv = vkq.Conv2d(weight, 0.002, padding=1, x_qparams=q, y_qparams=q, device=device)
    shapes = [(1, 8, int(h), int(w)) for h, w in RNG.integers(1, 40, (200, 2))]
    images = [RNG.integers(-128, 128, shape, np.int8) for shape in shapes]
    want = [conv(image) for image in images]
    seen = []
    for i in range(1, calls + 1):
        which = int(RNG.integers(len(images)))
        assert np.array_equal(conv(images[which]), want[which])
        data = np.full(RNG.integers(1, 300_000), i, np.int32)
        assert (vkq.Tensor.from_numpy(data, device).numpy() == i).all()
        if i in (calls // 10, calls // 2, calls):
            seen.append({
                "calls": i, "device": device._memory.arena.allocated_bytes,
                "staging": device._memory.staging.allocated_bytes, "resident": resident_bytes(),
            })  # fmt: skip
            print(seen[-1], flush=True)
    return seen


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes (Linux)."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * PAGE


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device")
    parser.add_argument("--bytes", type=int, default=3_000_000_000)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--json")
    options = parser.parse_args()
    with vkq.Device(options.device) as device:
        found = {
            "device": device.name, "driver": device.capabilities.driver_version,
            "date": time.strftime("%Y-%m-%d"), "vkq": vkq.__version__,
            "arrays": there_and_back(device, options.bytes), "sizes": changing_sizes(device, options.calls),
        }  # fmt: skip
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
