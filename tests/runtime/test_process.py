"""Fork, Ctrl-C and the end of the process, each in a process of its own."""

import os
import signal
import subprocess
import sys
import time

import pytest

import vkq

ENDS = int(os.environ.get("VKQ_EXITS", "4"))  # of processes with daemon threads
PRELUDE = """
import os, signal, sys, threading, time
import numpy as np
import vkq
device = vkq.Device(sys.argv[1])
q = vkq.QParams(1.0)
layer = vkq.Linear(np.full((256, 512), 3, np.int8), 0.5, x_qparams=q, path="portable", device=device)
x = np.ones((256, 512), np.int8)
tensor = vkq.Tensor.from_numpy(x, device)
small = vkq.Tensor.from_numpy(x[:1], device)
# A job in the background of a shell inherits SIGINT ignored, and Python then installs no handler.
signal.signal(signal.SIGINT, signal.default_int_handler)
def long_work():
    # About a second on this device, however slow.
    count = 4
    while True:
        with device.record() as recording:
            for _ in range(count):
                layer(tensor)
        start = time.monotonic()
        recording.run()
        taken = time.monotonic() - start
        if taken > 0.7:
            return recording
        count = int(count * min(20, 1.0 / taken)) + 1
"""


def python(code: str, device: vkq.Device, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-c", PRELUDE + code, device.name, *arguments],
        env={**os.environ, "VKQ_VALIDATION": "0", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ends(process: subprocess.Popen[str], output: str = "", code: int = 0, seconds: float = 90) -> None:
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with what it forked, which may hold its pipes
        pytest.fail(f"the process hangs: {process.communicate()}")
    assert (process.returncode, out, err) == (code, output, "")


EXITS = {
    "idle": "y = layer(x)",
    "pending work": "y = layer(tensor)",
    "work in flight": "layer(tensor); device.flush()",
    "many in flight": "for _ in range(3): layer(tensor); device.flush()",
    "objects in a cycle": "a = [device, layer]; a.append(a); y = layer(tensor); a.append(y)",
    "objects in a module": (
        "import types; sys.modules['m'] = m = types.ModuleType('m'); m.y = layer(tensor); m.d = device"
    ),
    "the default device": (
        "os.environ['VKQ_DEVICE'] = sys.argv[1]; q = vkq.quantize(np.ones(3, np.float32), vkq.QParams(1.0))"
    ),
    "a closed device": "y = layer(tensor); device.close()",
    "a daemon thread": (
        "threading.Thread(target=lambda: [layer(x) for _ in iter(int, 1)], daemon=True).start(); layer(x)"
    ),
    "sys.exit in a with block": "with device: layer(tensor); sys.exit(0)",
}


@pytest.mark.parametrize("code", EXITS.values(), ids=EXITS)
def test_the_process_ends_quietly(any_device: vkq.Device, code: str) -> None:
    """Exit code 0 and not a word, neither of Python nor of the validation layer."""
    if "daemon" in code:  # whose own error, when the device closes under it, is not the question
        code = "threading.excepthook = lambda _: None; " + code
    ends(python("print('begun')\n" + code, any_device, VKQ_VALIDATION="1"), "begun\n")


@pytest.mark.parametrize("validation", ["0", "1"])
def test_the_process_ends_quietly_on_each_driver(device: vkq.Device, validation: str) -> None:
    ends(python("r = long_work(); r.submit(); z = layer(small)", device, VKQ_VALIDATION=validation))


@pytest.mark.parametrize("threads", [1, 4])
def test_daemon_threads_at_the_end_neither_abort_nor_hang(device: vkq.Device, threads: int) -> None:
    """CPython unwinds a thread that wants the GIL while it ends; C++ destructors would end the process."""
    code = """
threading.excepthook = lambda _: None
def work():
    while True:
        layer(x)
        vkq.Tensor.from_numpy(x, device).numpy()
for _ in range(int(sys.argv[2])):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
"""
    for first in range(0, ENDS, 4):
        for process in [python(code, device, str(threads)) for _ in range(first, min(first + 4, ENDS))]:
            ends(process)


def test_a_forked_child_is_told_to_spawn(device: vkq.Device) -> None:
    """Forked with work in flight and pending, and with another thread in the driver: the child ends, and the
    parent goes on."""
    code = """
threading.Thread(target=lambda: [layer(x[:1]) for _ in range(20)], daemon=True).start()
recording = long_work()
recording.submit()
pending = layer(tensor)
if os.fork() == 0:
    uses = [lambda: layer(x), pending.numpy, lambda: layer(tensor), device.synchronize, recording.run,
            lambda: vkq.Tensor(device, (3,), 'int32'), lambda: vkq.Device(), vkq.devices]
    for use in uses:
        try:
            use()
            print('no error', use)
        except vkq.DeviceError as error:
            assert 'spawn' in str(error), error
    device.close()
    del recording, pending, layer, tensor, use, uses, device
    import gc
    gc.collect()
    sys.stdout.flush()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
recording.wait()
assert (pending.numpy() == layer(x)).all()
"""
    ends(python("import warnings; warnings.simplefilter('ignore')\n" + code, device))


def test_a_sub_interpreter_is_refused_and_this_one_goes_on(any_device: vkq.Device) -> None:
    """NumPy and the extension are loaded once in a process."""
    code = """
try:
    import _interpreters as interpreters  # from CPython 3.13 on
except ImportError:
    import _xxsubinterpreters as interpreters
try:
    said = interpreters.run_string(interpreters.create(), f"import sys; sys.path[:] = {sys.path}; import vkq")
except Exception as error:  # up to 3.12
    said = error
print("ImportError" in str(said), (layer(tensor).numpy() == layer(x)).all())
"""
    ends(python(code, any_device), "True True\n")


def test_a_spawned_child_works(any_device: vkq.Device) -> None:
    code = """
import multiprocessing
context = multiprocessing.get_context('spawn')
with context.Pool(1) as pool:
    assert pool.apply(vkq.quantize, (np.ones(3, np.float32), vkq.QParams(0.5))).tolist() == [2, 2, 2]
"""
    ends(python(code, any_device))


def test_ctrl_c_while_waiting_is_raised_when_the_work_has_ended(device: vkq.Device) -> None:
    """Not before: nothing is in flight when the interrupt arrives, and the whole time of the work is over."""
    code = """
recording = long_work()
start = time.monotonic()
recording.run()
alone = time.monotonic() - start
print('waiting', flush=True)
start = time.monotonic()
try:
    recording.run()
    print('not interrupted')
except KeyboardInterrupt:
    waited = time.monotonic() - start
    flying = device.queue.in_flight()
    print('interrupted', recording._native.running, flying, waited > 0.6 * alone, flush=True)
recording.wait()
assert (layer(tensor).numpy() == layer(x)).all()
"""
    process = python(code, device)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    ends(process, "interrupted False [] True\n")


def test_ctrl_c_ends_a_script(any_device: vkq.Device) -> None:
    process = python("recording = long_work(); print('waiting', flush=True); recording.run()", any_device)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (-signal.SIGINT, "")
    assert err.strip().endswith("KeyboardInterrupt")
    assert "Fatal" not in err


def test_a_signal_handler_may_close_the_device(any_device: vkq.Device) -> None:
    """It runs in the middle of the wait, which ends with an error that says so."""
    code = """
recording = long_work()
signal.signal(signal.SIGINT, lambda *_: device.close())
print('waiting', flush=True)
try:
    recording.run()
except vkq.DeviceError as error:
    print('closed' in str(error))
"""
    process = python(code, any_device)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    ends(process, "True\n")
