"""Declare how a SPIR-V module rounds floats and treats subnormals. Without a declaration, the driver
chooses."""

from __future__ import annotations

import struct

from vkq.errors import CompileError
from vkq.shader.spirv import (
    CAPABILITY_DENORM_PRESERVE,
    CAPABILITY_ROUNDING_MODE_RTE,
    MODE_DENORM_PRESERVE,
    MODE_ROUNDING_MODE_RTE,
    OP_CAPABILITY,
    OP_ENTRY_POINT,
    OP_EXECUTION_MODE,
    OP_EXECUTION_MODE_ID,
    OP_EXTENSION,
    OP_IMPORT,
    OP_MEMORY_MODEL,
    Instruction,
    assemble,
    parse,
)

_BEFORE_NAMES = frozenset({OP_CAPABILITY, OP_EXTENSION, OP_IMPORT, OP_MEMORY_MODEL, OP_ENTRY_POINT})
_BEFORE_NAMES |= {OP_EXECUTION_MODE, OP_EXECUTION_MODE_ID}


def with_float_controls(spirv: bytes, *, rte: bool, denorm_preserve: bool) -> bytes:
    """Return the module with explicit 32-bit float behaviour (SPV_KHR_float_controls) for every entry point.

    Args:
        spirv: the module.
        rte: round to nearest even (RoundingModeRTE); the device must have shaderRoundingModeRTEFloat32.
        denorm_preserve: keep subnormals (DenormPreserve); the device must have shaderDenormPreserveFloat32.

    Returns:
        A new module, or the same bytes if both flags are False. A mode that the module already declares is
        not declared again.

    Raises:
        CompileError: the bytes are not a SPIR-V module.
    """
    wanted = []
    if rte:
        wanted.append((CAPABILITY_ROUNDING_MODE_RTE, MODE_ROUNDING_MODE_RTE))
    if denorm_preserve:
        wanted.append((CAPABILITY_DENORM_PRESERVE, MODE_DENORM_PRESERVE))
    if not wanted:
        return spirv
    header, old, rest = parse(spirv, _BEFORE_NAMES.__contains__)
    extension = Instruction(OP_EXTENSION, _literal("SPV_KHR_float_controls"))
    entries = [_function(instruction) for instruction in old if instruction.op == OP_ENTRY_POINT]
    modes = [Instruction(OP_EXECUTION_MODE, (entry, mode, 32)) for entry in entries for _, mode in wanted]
    capabilities = [Instruction(OP_CAPABILITY, (capability,)) for capability, _ in wanted]
    # The order in a SPIR-V module: capabilities, extensions, imports, memory model, entry points, execution
    # modes.
    new = _insert(old, capabilities, {OP_CAPABILITY})
    new = _insert(new, [extension], {OP_CAPABILITY, OP_EXTENSION})
    new = _insert(new, modes, {OP_ENTRY_POINT, OP_EXECUTION_MODE})
    return assemble(header, new, rest)


def _function(entry_point: Instruction) -> int:
    if len(entry_point.words) < 3:  # operands: execution model, function, name
        raise CompileError(
            f"an entry point of the SPIR-V has {len(entry_point.words)} words; it must have at least 3."
        )
    return entry_point.words[1]


def _insert(old: list[Instruction], added: list[Instruction], after: set[int]) -> list[Instruction]:
    """Return *old* with the missing instructions of *added*, after the last instruction with an opcode in
    *after*."""
    at = max((index + 1 for index, instruction in enumerate(old) if instruction.op in after), default=0)
    return old[:at] + [instruction for instruction in added if instruction not in old] + old[at:]


def _literal(text: str) -> tuple[int, ...]:
    data = text.encode() + b"\0"
    data += b"\0" * (-len(data) % 4)
    return struct.unpack(f"<{len(data) // 4}I", data)
