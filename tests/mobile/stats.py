"""Run `vkq shaders stats` in the emulated arm64 Debian, with the part of the extension that setup.sh
compiled. Devices are not destroyed, because v3dv crashes when it destroys one."""

import os
import sys
from pathlib import Path

import numpy

import vkq
from vkq.cli import main
from vkq.runtime.statistics import Compiler

vkq.__path__.append(str(Path(numpy.__file__).parents[1] / "native"))
Compiler.__exit__ = lambda self, *reason: None
status = main(["shaders", "stats", *sys.argv[1:]])
sys.stdout.flush()
os._exit(status)
