"""The GLSL compilers that vkq can use. Only building shaders needs them; a wheel contains SPIR-V.

A provider is either the glslang library in the PyPI package ``slangpy``, called with ctypes (slangpy is not
imported), or a compiler command on PATH. It is used only if it compiles a probe with integer dot products
and cooperative matrices: some distributions ship compilers without these extensions.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Protocol

from vkq.errors import CompileError
from vkq.turns import Turns

PROBE = """#version 450
#extension GL_EXT_integer_dot_product : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
layout(binding = 0) buffer Data { int data[]; };
coopmat<int, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator> sums;
void main() {
    sums = coopmat<int, gl_ScopeSubgroup, 16, 16, gl_MatrixUseAccumulator>(dotPacked4x8EXT(data[0], data[1]));
    coopMatStore(sums, data, 0, 16, gl_CooperativeMatrixLayoutRowMajor); }
"""
TIMEOUT_S = 120


class Compiler(Protocol):
    """A compiler of GLSL compute shaders to optimized SPIR-V 1.3 for Vulkan 1.1."""

    name: str

    def compile(self, source: str, path: str) -> bytes:
        """Return the SPIR-V of the GLSL text *source*. *path*: the name of the text in messages about lines
        above the first ``#line``.

        Raises:
            CompileError: the compiler's own messages, ``file:line: what``, one on a line.
        """
        ...


_Output = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


class _Request(ctypes.Structure):
    """``glslang_CompileRequest_1_2`` of Slang's glslang wrapper."""

    _fields_ = (
        ("size_bytes", ctypes.c_size_t),
        ("source_path", ctypes.c_char_p),
        ("source_begin", ctypes.c_void_p),
        ("source_end", ctypes.c_void_p),
        ("on_message", _Output),
        ("message_data", ctypes.c_void_p),
        ("on_output", _Output),
        ("output_data", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("action", ctypes.c_uint),
        ("optimization", ctypes.c_uint),
        ("debug_info", ctypes.c_uint),
        ("target", ctypes.c_char_p),
        ("spirv_version", ctypes.c_int * 3),
        ("entry_point", ctypes.c_char_p),
    )


_STAGE_COMPUTE, _ACTION_GLSL_TO_SPIRV, _OPTIMIZE_HIGH = 6, 0, 2


class LibraryCompiler:
    """glslang and SPIRV-Tools as the shared library ``libslang-glslang`` of the package ``slangpy``."""

    def __init__(self, library: Path):
        self.name, self.library = f"slangpy ({library.name})", library
        self._compile = ctypes.CDLL(str(library)).glslang_compile_1_2
        self._compile.argtypes, self._compile.restype = [ctypes.POINTER(_Request)], ctypes.c_int
        # The library's state is shared by the whole process.
        self._lock = Turns("compiling a shader", again=True)
        # The library calls Python for its messages. A daemon thread must not run Python while the
        # interpreter exits, so the exit waits for running compilations and prevents new ones.
        atexit.register(self._lock.close)

    def compile(self, source: str, path: str) -> bytes:
        self._lock.check()
        text = source.encode()
        buffer = ctypes.create_string_buffer(text, len(text) + 1)
        output, messages = bytearray(), bytearray()
        request = _Request(
            size_bytes=ctypes.sizeof(_Request),
            source_path=path.encode(),
            source_begin=ctypes.addressof(buffer),
            source_end=ctypes.addressof(buffer) + len(text),
            on_message=_Output(lambda data, size, _: messages.extend(ctypes.string_at(data, size))),
            on_output=_Output(lambda data, size, _: output.extend(ctypes.string_at(data, size))),
            stage=_STAGE_COMPUTE,
            action=_ACTION_GLSL_TO_SPIRV,
            optimization=_OPTIMIZE_HIGH,
            spirv_version=(ctypes.c_int * 3)(1, 3, 0),
            entry_point=b"main",
        )
        # The request keeps the buffer alive: after Ctrl-C, this function ends before the compilation.
        request.text = buffer
        codes: list[int] = []

        def call() -> None:
            with self._lock:
                codes.append(self._compile(ctypes.byref(request)))

        if threading.current_thread() is threading.main_thread():
            # In the main thread, Ctrl-C could raise KeyboardInterrupt while the library calls Python; the
            # exception and the result would be lost.
            worker = threading.Thread(target=call, daemon=True)
            worker.start()
            worker.join()
        else:
            call()
        if codes != [0] or not output:
            raise CompileError(_messages(messages.decode(errors="replace"), path))
        return bytes(output)


_COMMANDS = {  # {command: arguments for optimized SPIR-V for Vulkan 1.1}
    "glslang": ["-V", "--target-env", "vulkan1.1", "-Os", "-S", "comp"],
    "glslangValidator": ["-V", "--target-env", "vulkan1.1", "-Os", "-S", "comp"],
    "glslc": ["--target-env=vulkan1.1", "-O", "-fshader-stage=compute"],
}


class CommandCompiler:
    """A ``glslang``, ``glslangValidator`` or ``glslc`` command."""

    def __init__(self, executable: Path):
        self.name = str(executable)
        self._command = [str(executable), *_COMMANDS[executable.stem]]

    def compile(self, source: str, path: str) -> bytes:
        with tempfile.TemporaryDirectory(prefix="vkq-") as folder:
            given, made = Path(folder, "shader.comp"), Path(folder, "shader.spv")
            given.write_text(source)
            command = [*self._command, "-o", str(made), str(given)]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                raise CompileError(f"{path}: {self.name} did not run: {error}.") from error
            if done.returncode or not made.is_file():
                raise CompileError(_messages((done.stdout + done.stderr).replace(str(given), path), path))
            return made.read_bytes()


def _messages(log: str, path: str) -> str:
    """Return the lines of a compiler's log that name a problem, as ``file:line: what``."""
    lines = (line.strip().removeprefix("ERROR: ").removeprefix("error: ") for line in log.splitlines())
    noise = ("compilation terminated", "No code generated", "compilation errors", "WARNING:", "warning:")
    kept = [
        " ".join(line.split())
        for line in lines
        if line and line != path and not any(n in line for n in noise)
    ]
    return "\n".join(kept) or f"{path}: the compiler failed without a message."


def _providers() -> Iterator[Compiler]:
    package = importlib.util.find_spec("slangpy")
    for folder in (package and package.submodule_search_locations) or []:
        for pattern in ("libslang-glslang*", "slang-glslang*"):
            yield from (LibraryCompiler(library) for library in sorted(Path(folder).glob(pattern)))
    for command in _COMMANDS:
        executable = shutil.which(command)
        if executable:
            yield CommandCompiler(Path(executable))


@cache
def find_compiler() -> Compiler:
    """Return the first provider that compiles the probe.

    Raises:
        CompileError: there is none; the message names what was tried and the remedy.
    """
    tried = []
    for compiler in _providers():
        try:
            compiler.compile(PROBE, "probe.comp")
        except CompileError as error:
            tried.append(f"{compiler.name} cannot compile the probe: {str(error).splitlines()[0]}")
        else:
            return compiler
    found = "; ".join(tried) or "neither slangpy nor glslang, glslangValidator or glslc on PATH was found"
    raise CompileError(f"no usable GLSL compiler: {found}. Install one with: pip install 'vkq[compile]'")
