"""Tests of fork, of Ctrl-C and of a process's exit. Each test runs its own process."""

import os
import signal
import subprocess
import sys
import time

import pytest

import vkq

ENDS = int(os.environ.get("VKQ_EXITS", "4"))  # number of processes with daemon threads
PRELUDE = """
import os, signal, sys, threading, time
import numpy as np
import vkq
device = vkq.Device(sys.argv[1])
q = vkq.QParams(1.0)
k = 512 if device.capabilities.device_type == "cpu" else 4096  # a GPU needs few dispatches for long work, too
layer = vkq.Linear(np.full((k // 2, k), 3, np.int8), 0.5, x_qparams=q, path="portable", device=device)
x = np.ones((k // 2, k), np.int8)
tensor = vkq.Tensor.from_numpy(x, device)
small = vkq.Tensor.from_numpy(x[:1], device)
# A shell's background job ignores SIGINT, and Python then installs no handler.
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
        os.killpg(process.pid, signal.SIGKILL)  # ends its children, too, which may hold the pipes
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
    """The process ends with exit code 0, without a message of Python or of the validation layer."""
    if "daemon" in code:  # the thread itself raises when the device closes
        code = "threading.excepthook = lambda _: None; " + code
    ends(python("print('begun')\n" + code, any_device, VKQ_VALIDATION="1"), "begun\n")


@pytest.mark.parametrize("validation", ["0", "1"])
def test_the_process_ends_quietly_on_each_driver(device: vkq.Device, validation: str) -> None:
    ends(python("r = long_work(); r.submit(); z = layer(small)", device, VKQ_VALIDATION=validation))


@pytest.mark.parametrize("threads", [1, 4])
def test_daemon_threads_at_the_end_neither_abort_nor_hang(device: vkq.Device, threads: int) -> None:
    """Daemon threads that use a device neither abort the process at its exit nor keep it from ending.
    CPython unwinds threads that ask for the GIL at exit; C++ destructors that run then would abort."""
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
    """A process is forked while work is pending and in flight and another thread is in the driver. Every
    use in the child raises an error that recommends spawn; the child ends, and the parent continues."""
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
            assert '(gunicorn: without --preload)' in str(error) and 'spawn' in str(error), error
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
    """A sub-interpreter cannot import vkq, because NumPy and the extension can be loaded only once in a
    process. The main interpreter continues."""
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
    """Ctrl-C during a wait is raised when the work has ended, not earlier: nothing is in flight then, and
    the wait took more than 60 % of the time of an uninterrupted wait."""
    code = """
recording = long_work()
start = time.monotonic()
recording.run()
alone = time.monotonic() - start
print('waiting', flush=True)
try:
    while True:  # on a busy machine, Ctrl-C may come late
        start = time.monotonic()
        recording.run()
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
    """A signal handler may close the device during a wait. The wait then raises an error that says that the
    device is closed."""
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


# name -> a call of an entry point. A forked child makes this call; during the fork, another thread of the
# parent was inside the same call.
FORKED = {
    "session.run": "lambda: session.run(None, {'x': images})",
    "session.map": "lambda: list(session.map(images, 4))",
    "session.explain": "lambda: session.explain({'x': (3, 1, 8, 8)})",
    "recording.run": "recording.run",
    "layer": "lambda: layer(x)",
    "numpy": "tensor.numpy",
    "write": "lambda: tensor.write(x)",
    "record": "lambda: device.record().__enter__()",
    "used bytes": "lambda: device.memory_used_bytes",
    "trim": "lambda: device.queue.trim()",
    "empty_pinned": "lambda: vkq.empty_pinned((3,), device=device)",
}


def test_a_child_forked_while_a_thread_is_at_work_is_told(any_device: vkq.Device) -> None:
    code = f"""
import vkq.onnx
session = vkq.onnx.InferenceSession("examples/models/digits.onnx", device)
images = np.zeros((32, 1, 8, 8), np.float32)
session.run(None, {{'x': images}})
with device.record() as recording:
    layer(tensor)
ways = {{{", ".join(f"{name!r}: {way}" for name, way in FORKED.items())}}}
stop = []
for name, way in ways.items():
    del stop[:]
    def at_work():
        while not stop:
            try: way()
            except vkq.ArgumentError: pass
    remedies = '(gunicorn: without --preload)', 'spawn'
    thread = threading.Thread(target=at_work)
    thread.start()
    time.sleep(0.02)
    children = []
    for _ in range(3):
        time.sleep(0.003)
        children.append(os.fork())
        if children[-1] == 0:
            signal.alarm(20)
            try: way()
            except vkq.DeviceError as error: os._exit(0 if all(w in str(error) for w in remedies) else 2)
            except BaseException: os._exit(3)
            os._exit(1)
    codes = [os.waitstatus_to_exitcode(os.waitpid(one, 0)[1]) for one in children]
    stop.append(1)
    thread.join()
    if any(codes): print(name, codes)
"""
    ends(python("import warnings; warnings.simplefilter('ignore')\n" + code, any_device))


REENTERED = {
    "a signal handler": """
session = vkq.onnx.InferenceSession("examples/models/digits.onnx", device)
session.run(None, feed)
told = []
def handler(*_):
    try: session.run(None, feed)
    except vkq.DeviceError as error: told.append(str(error))
    if len(told) < 5: signal.setitimer(signal.ITIMER_REAL, 0.002)
signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 0.001)
while len(told) < 5: results = session.run(None, feed)
assert all('inside it already' in one for one in told), told
""",
    "progress": """
told = []
def progress(made, count):
    try: session.run(None, feed)
    except vkq.DeviceError as error: told.append(str(error))
session = vkq.onnx.InferenceSession("examples/models/digits.onnx", device, progress=progress)
results = session.run(None, feed)
assert told and all('inside it already' in one for one in told), told
""",
    "an operation": """
session = vkq.onnx.InferenceSession("examples/models/digits.onnx", device)
y = layer(tensor)
with device.operation():
    for way in (y.numpy, device.synchronize, lambda: session.run(None, feed)):
        try: print('no error', way())
        except vkq.DeviceError as error: assert 'inside of an operation' in str(error), error
results = session.run(None, feed)
""",
}


@pytest.mark.parametrize("code", REENTERED.values(), ids=REENTERED)
def test_a_thread_that_comes_back_is_told(any_device: vkq.Device, code: str) -> None:
    begin = "import vkq.onnx; feed = {'x': np.zeros((64, 1, 8, 8), np.float32)}\n"
    end = "\nassert (session.run(None, feed)[0] == results[0]).all()"
    ends(python(begin + code + end, any_device))


FIRST_AT_EXIT = """
import atexit, os, sys
import numpy as np
def first():
    import vkq.onnx
    session = vkq.onnx.InferenceSession("examples/models/digits.onnx", sys.argv[1])
    print(session.run(None, {'x': np.zeros((1, 1, 8, 8), np.float32)})[0].shape)
    with vkq.Device(sys.argv[1]) as device:
        print(vkq.Tensor.from_numpy(np.ones(3, np.float32), device).numpy_async().result())
"""


@pytest.mark.parametrize("before", ["", "import vkq.onnx", "import vkq; device = vkq.Device(sys.argv[1])"])
def test_a_first_run_at_the_end_of_the_process(any_device: vkq.Device, before: str) -> None:
    """A function that runs at the exit of the process can open a device and run a new session. It may run
    before or after vkq closes the devices that were open. No thread can be started at that time."""
    for code in (f"atexit.register(first)\n{before}", f"{before}\natexit.register(first)"):
        child = subprocess.run(
            [sys.executable, "-c", FIRST_AT_EXIT + code, any_device.name],
            env={**os.environ, "VKQ_VALIDATION": "0"},
            capture_output=True,
            text=True,
            timeout=90,
        )
        assert (child.returncode, child.stdout, child.stderr) == (0, "(1, 10)\n[1. 1. 1.]\n", "")
