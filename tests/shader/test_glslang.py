"""Tests of the providers of compilers: the library with real shaders, and fake commands."""

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from vkq.errors import CompileError
from vkq.shader import glslang
from vkq.shader.glslang import PROBE, CommandCompiler, LibraryCompiler, find_compiler
from vkq.shader.reflect import reflect

SOURCE = """#version 450
layout(local_size_x = 4) in;
layout(constant_id = 1) const uint COUNT = 3;
layout(binding = 0) buffer B { int b[]; };
int twice(int v) { return v + v; }
void main() { int unused = b[9] * 3; for (uint i = 0; i < COUNT; i++) b[i] = twice(twice(b[i])); }
"""


def test_library_optimizes_and_keeps_specialization_constants() -> None:
    compiler = find_compiler()
    spirv = compiler.compile(SOURCE, "a.comp")
    assert spirv[:4] == b"\x03\x02\x23\x07"
    assert spirv[4:8] == b"\x00\x03\x01\x00"  # the version is SPIR-V 1.3
    functions = [word for word in memoryview(spirv).cast("I")[5:] if word == 5 << 16 | 54]
    assert len(functions) == 1  # optimization has inlined twice()
    assert reflect(spirv).specialization[1][1].default == 3


def test_messages_name_file_and_line_of_the_glsl() -> None:
    marked = SOURCE.replace("int twice", '#line 40 "common/twice.glslh"\nint twice').replace(
        "return v", "return w"
    )
    marked = marked.replace(
        "#version 450", "#version 450\n#extension GL_GOOGLE_cpp_style_line_directive : require"
    )
    with pytest.raises(CompileError) as caught:
        find_compiler().compile(marked, "a.comp")
    lines = str(caught.value).splitlines()
    assert lines[0] == "common/twice.glslh:40: 'w' : undeclared identifier"
    assert not any("compilation" in line or "No code" in line for line in lines)


def test_threads_get_the_same_bytes() -> None:
    compiler, results = find_compiler(), []
    threads = [
        threading.Thread(target=lambda: results.append(compiler.compile(SOURCE, "a"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [compiler.compile(SOURCE, "a")] * 8


def command(folder: Path, name: str, script: str) -> Path:
    """Write a fake compiler command; return its path."""
    path = folder / name
    path.write_text(f"#!{sys.executable}\nimport sys\n{script}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


WORKS = (
    f"sys.path.insert(0, {str(Path(__file__).parents[2])!r})"
    + """
from pathlib import Path
from vkq.shader.glslang import _providers
library = next(_providers())
given, made = sys.argv[-1], sys.argv[sys.argv.index("-o") + 1]
Path(made).write_bytes(library.compile(Path(given).read_text(), given))
"""
)
FAILS = "print(f'ERROR: {sys.argv[-1]}:2: extension not supported'); sys.exit(2)"


@pytest.mark.parametrize("name", ["glslang", "glslangValidator", "glslc"])
def test_commands(tmp_path: Path, name: str) -> None:
    compiler = CommandCompiler(command(tmp_path, name, WORKS))
    assert compiler.compile(SOURCE, "a.comp") == find_compiler().compile(SOURCE, "a.comp")
    with pytest.raises(CompileError, match=r"^a\.comp:2: extension not supported$"):
        CommandCompiler(command(tmp_path, name, FAILS)).compile(SOURCE, "a.comp")
    with pytest.raises(CompileError, match="the compiler failed without a message"):
        CommandCompiler(command(tmp_path, name, "")).compile(SOURCE, "a.comp")


def find_with(monkeypatch: pytest.MonkeyPatch, folder: Path, package: bool) -> "glslang.Compiler":
    """Return the result of `find_compiler` with only *folder* on PATH."""
    monkeypatch.setenv("PATH", str(folder))
    if not package:
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    return find_compiler.__wrapped__()


def test_provider_order_and_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command(tmp_path, "glslang", FAILS)
    command(tmp_path, "glslangValidator", FAILS)
    assert isinstance(find_with(monkeypatch, tmp_path, package=True), LibraryCompiler)
    with pytest.raises(
        CompileError, match=r"glslangValidator cannot compile the probe.*pip install 'vkq\[compile\]'"
    ):
        find_with(monkeypatch, tmp_path, package=False)
    usable = command(tmp_path, "glslc", "import shutil; shutil.copy(sys.argv[-1], sys.argv[-2])")
    assert find_with(monkeypatch, tmp_path, package=False).name == str(usable)


def test_no_provider_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.makedirs(tmp_path / "empty")
    with pytest.raises(
        CompileError, match=r"neither slangpy nor .* was found\. .*pip install 'vkq\[compile\]'"
    ):
        find_with(monkeypatch, tmp_path / "empty", package=False)


def test_probe_needs_both_extensions() -> None:
    assert {6018, 6022} <= reflect(find_compiler().compile("".join(PROBE), "probe")).capabilities


def test_a_signal_is_not_lost() -> None:
    """A signal during compilation is not lost. The library calls back into Python. If a signal handler raised
    an exception inside a callback, the exception and the result would be lost."""
    # enough code for a signal to arrive during the compilation
    lines = "".join(f"data[{i}] += data[{i + 1}] / 3;" for i in range(200))
    source = f"#version 450\nlayout(binding = 0) buffer D {{ int data[]; }};void main() {{ {lines} }}"
    compiler = find_compiler()

    def interrupted() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        compiler.compile(source, "long.comp")

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert compiler.compile(SOURCE, "a.comp") == compiler.compile(SOURCE, "a.comp")


def test_the_interpreter_ends_while_a_daemon_thread_compiles() -> None:
    """The interpreter can end while a daemon thread compiles: its exit waits for the compilation. (The
    compiler library calls back into Python, which no thread may enter while the interpreter ends.) In this
    test, the process runs for two seconds after Python has ended."""
    code = """if True:
        import ctypes, threading, time
        from vkq.shader.glslang import find_compiler
        libc = ctypes.CDLL(None)
        libc.__cxa_atexit(libc.sleep, 2, None)
        lines = "".join(f"data[{i}] += data[{i + 1}] / 3;" for i in range(1500))  # longer than the end
        source = f"#version 450\\nlayout(binding = 0) buffer D {{ int data[]; }};void main() {{ {lines} }}"
        compiler = find_compiler()
        threading.Thread(target=lambda: compiler.compile(source, "long.comp"), daemon=True).start()
        time.sleep(0.02)"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=90)
