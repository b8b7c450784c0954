"""Tests of closing a device while objects on it are alive."""

import gc
import subprocess
import sys

import numpy as np
import pytest

import vkq
from tests.runtime import work

CODE = """
import numpy as np, vkq
for _ in range(4):
    with vkq.Device() as device:
        recordings = []
        for path in ("dot_s8s8", "dot_u8s8", "dot_u8u8", "portable"):
            q = vkq.QParams(1.0)
            layer = vkq.Linear(np.ones((4, 4), np.int8), 1.0, x_qparams=q, path=path, device=device)
            x = vkq.Tensor.from_numpy(np.ones((4, 4), np.int8), device)
            with device.record(timestamps=1) as recording:
                layer(x)
            recording.run()
            recordings.append(recording)
        del layer, x
"""


@pytest.mark.parametrize("staging", [False, True])
def test_pinned_arrays_outlive_their_device(device: vkq.Device, staging: bool) -> None:
    """Pinned arrays keep their memory after their device is closed, also if one of them was being uploaded.
    The last one is freed long after the close."""
    mine = work.opened(device, staging)
    one, two = mine.empty_pinned((300, 1001), np.float32), mine.empty_pinned((7,), np.int8)
    one[:], two[:] = 3, 4
    rows = one[5:]
    tensor = vkq.Tensor.from_numpy(rows, mine)
    del one
    mine.close()
    with pytest.raises(vkq.DeviceError, match="closed"):
        tensor.numpy()
    assert (rows == 3).all()
    rows += 1
    del two, tensor, mine
    gc.collect()
    np.testing.assert_array_equal(vkq.Tensor.from_numpy(rows, device).numpy(), np.full((295, 1001), 4))
    back = vkq.Tensor.from_numpy(np.full_like(rows, 5), device)
    back.numpy(out=rows)
    assert (rows == 5).all()


PINNED = """
import numpy as np, vkq
kept = [vkq.Device().empty_pinned((1000,), np.int8) for _ in range(2)]
shown = kept[0][3:]
shown[:] = 1
closed = vkq.Device()
late = closed.empty_pinned((5,), np.int8)
closed.close()
late[:] = 2
"""


def test_a_process_ends_with_pinned_arrays() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PINNED], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_recording_that_holds_the_last_use_of_a_program_survives_the_device() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")
