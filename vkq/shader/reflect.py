"""The interface in a SPIR-V module, and its comparison with the YAML."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from vkq.errors import CompileError
from vkq.shader.spec import Binding, Constant, PushConstant, Value, Variant
from vkq.shader.spirv import (
    BINDING,
    BUILT_IN,
    BUILT_IN_WORKGROUP_SIZE,
    DESCRIPTOR_SET,
    MODE_LOCAL_SIZE,
    NON_READABLE,
    NON_WRITABLE,
    OFFSET,
    OP_ARRAY,
    OP_CAPABILITY,
    OP_EXECUTION_MODE,
    OP_EXTENSION,
    OP_IMAGE,
    OP_RUNTIME_ARRAY,
    OP_SAMPLED_IMAGE,
    OP_SPEC_FALSE,
    OP_SPEC_TRUE,
    OP_STRUCT,
    PUSH_CONSTANT,
    SPEC_ID,
    STORAGE_BUFFER,
    UNIFORM,
    WORKGROUP,
    Module,
)

FEATURES = {  # {SPIR-V capability: (its name, Vulkan feature that allows it)}
    9: ("Float16", "shaderFloat16"),
    10: ("Float64", "shaderFloat64"),
    11: ("Int64", "shaderInt64"),
    22: ("Int16", "shaderInt16"),
    39: ("Int8", "shaderInt8"),
    4433: ("StorageBuffer16BitAccess", "storageBuffer16BitAccess"),
    4448: ("StorageBuffer8BitAccess", "storageBuffer8BitAccess"),
    5345: ("VulkanMemoryModel", "vulkanMemoryModel"),
    6016: ("DotProductInputAll", "shaderIntegerDotProduct"),
    6017: ("DotProductInput4x8Bit", "shaderIntegerDotProduct"),
    6018: ("DotProductInput4x8BitPacked", "shaderIntegerDotProduct"),
    6019: ("DotProduct", "shaderIntegerDotProduct"),
    5116: ("BFloat16TypeKHR", "shaderBFloat16CooperativeMatrix"),
    5118: ("BFloat16CooperativeMatrixKHR", "shaderBFloat16CooperativeMatrix"),
    6022: ("CooperativeMatrixKHR", "cooperativeMatrix"),
}
_ACCESS = {(True, False): "read", (False, True): "write", (True, True): "read_write", (False, False): "none"}


@dataclass(frozen=True)
class Reflection:
    """The interface of a compute shader in its SPIR-V. A name is empty where the compiler stripped it."""

    bindings: tuple[Binding, ...]
    push_constants: tuple[PushConstant, ...]
    specialization: Mapping[int, tuple[str, Constant]]
    local_size: tuple[int, int, int]  # for the specialization given to `reflect`
    local_size_ids: tuple[int | None, int | None, int | None]  # the constant_id that sets x, y and z
    shared_bytes: int  # for the specialization given to `reflect`
    capabilities: frozenset[int]
    extensions: frozenset[str]
    loops: int  # the number of loops without an unroll hint


def reflect(spirv: bytes, specialization: Mapping[int, Value] | None = None) -> Reflection:
    """Read the interface of a compute shader from its SPIR-V.

    Args:
        spirv: the module.
        specialization: {``constant_id``: value}, for the local size and the shared memory. Other constants
            have the module's default.

    Raises:
        CompileError: the bytes are not SPIR-V, or use a descriptor set other than 0, which vkq's shaders
        never do.
    """
    try:
        module = Module(spirv, specialization or {})
        local_size, local_size_ids = _local_size(module)
        return Reflection(
            bindings=tuple(sorted(_bindings(module), key=lambda binding: binding.number)),
            push_constants=tuple(_push_constants(module)),
            specialization=_constants(module),
            local_size=local_size,
            local_size_ids=local_size_ids,
            shared_bytes=module.packed(tuple(kind for _, kind in module.variables(WORKGROUP)))[0],
            capabilities=frozenset(instruction.words[0] for instruction in module.of(OP_CAPABILITY)),
            extensions=frozenset(instruction.text(0) for instruction in module.of(OP_EXTENSION)),
            loops=module.loops,
        )
    except (LookupError, TypeError, ValueError, ArithmeticError, struct.error, RecursionError) as error:
        raise CompileError(f"the SPIR-V module is malformed: {error!r}.") from error


def _bindings(module: Module) -> Iterator[Binding]:
    for identifier, block in module.variables(UNIFORM, STORAGE_BUFFER, 0):
        decorations = module.decorations.get(identifier, {})
        if BINDING not in decorations:
            continue
        number, name = decorations[BINDING], module.names.get(identifier) or module.names.get(block, "")
        if decorations.get(DESCRIPTOR_SET, 0):
            raise CompileError(
                f"binding {number} is in descriptor set {decorations[DESCRIPTOR_SET]}; vkq's shaders use set"
                " 0 only."
            )
        structure = module.defined.get(block)
        if structure and structure.op in (OP_IMAGE, OP_SAMPLED_IMAGE):
            yield Binding(number, name, "read", module.texels_name(block))
            continue
        members = structure.words[1:] if structure and structure.op == OP_STRUCT else ()
        flags = [
            decorations.keys() | module.decorations.get((block, i), {}).keys() for i in range(len(members))
        ]
        readable = not all(NON_READABLE in each for each in flags)
        writable = not all(NON_WRITABLE in each for each in flags)
        access = _ACCESS[readable, writable]
        last = module.defined.get(members[-1]) if members else None
        element = module.type_name(last.words[1]) if last and last.op in (OP_ARRAY, OP_RUNTIME_ARRAY) else "?"
        yield Binding(number, name, access, element)


def _push_constants(module: Module) -> Iterator[PushConstant]:
    for _, block in module.variables(PUSH_CONSTANT):
        for index, member in enumerate(module.defined[block].words[1:]):
            offset = module.decorations[block, index][OFFSET]
            yield PushConstant(module.names.get((block, index), ""), module.type_name(member), offset)


def _constants(module: Module) -> dict[int, tuple[str, Constant]]:
    found: dict[int, tuple[str, Constant]] = {}
    for identifier, instruction in module.defined.items():
        number = module.decorations.get(identifier, {}).get(SPEC_ID)
        if number is None:
            continue
        truth = instruction.op in (OP_SPEC_TRUE, OP_SPEC_FALSE)
        default = instruction.op == OP_SPEC_TRUE if truth else module.literal(instruction)
        name = module.names.get(identifier, "")
        # `local_size_x_id` adds an unnamed constant with the id of the constant that the GLSL declares.
        if number not in found or name:
            found[number] = name, Constant(number, module.type_name(instruction.words[0]), default)
    return found


def _local_size(module: Module) -> tuple[tuple[int, int, int], tuple[int | None, int | None, int | None]]:
    for identifier, instruction in module.defined.items():
        if module.decorations.get(identifier, {}).get(BUILT_IN) == BUILT_IN_WORKGROUP_SIZE:
            parts = instruction.words[2:5]
            x, y, z = (module.evaluate(part) for part in parts)
            i, j, k = (module.decorations.get(part, {}).get(SPEC_ID) for part in parts)
            return (x, y, z), (i, j, k)
    for instruction in module.of(OP_EXECUTION_MODE):
        if instruction.words[1] == MODE_LOCAL_SIZE:
            x, y, z = instruction.words[2:5]
            return (x, y, z), (None, None, None)
    raise CompileError("the SPIR-V states no local size; it must be a compute shader.")


def check(variant: Variant, reflection: Reflection) -> list[str]:
    """Return the differences between a variant's YAML and the reflection of its SPIR-V; empty if they agree.

    *reflection* must be of the variant's default specialization. Constants and bindings marked ``optional``
    may be absent, because an optimizer removes unused ones.
    """
    return [
        *_check_bindings(variant, {binding.number: binding for binding in reflection.bindings}, reflection),
        *_check_push_constants(variant, reflection),
        *_check_constants(variant, reflection),
        *_check_sizes(variant, reflection),
        *_check_requires(variant, reflection),
        *_check_loops(variant, reflection),
    ]


def _check_bindings(variant: Variant, found: Mapping[int, Binding], reflection: Reflection) -> Iterator[str]:
    for number in sorted(found.keys() - {binding.number for binding in variant.bindings}):
        yield f"binding {number} ('{found[number].name}') is not in the YAML."
    if len(found) < len(reflection.bindings):
        yield "two buffers of the GLSL share a binding number; give each its own."
    for wanted in variant.bindings:
        what = f"binding {wanted.number} ('{wanted.name}')"
        if wanted.number not in found:
            if not wanted.optional:
                yield f"{what} is not used by the GLSL; remove it, or mark it 'optional: true'."
            continue
        have = found[wanted.number]
        if have.access != wanted.access and not (wanted.in_place and have.access == "read_write"):
            yield (
                f"{what} is {have.access} in the GLSL (readonly, writeonly) and {wanted.access} in the YAML."
            )
        if have.type != wanted.type:
            yield f"{what} is an array of {have.type} in the GLSL and of {wanted.type} in the YAML."


def _check_push_constants(variant: Variant, reflection: Reflection) -> Iterator[str]:
    have, want = reflection.push_constants, variant.push_constants
    if len(have) != len(want):
        yield f"the GLSL uses a block of {len(have)} push constants and the YAML names {len(want)}."
    for number, (mine, yours) in enumerate(zip(have, want, strict=False)):
        # If the SPIR-V has no name, do not compare names.
        named = replace(mine, name=mine.name or yours.name)
        if named != yours:
            texts = (f"'{each.name}' {each.type} at offset {each.offset}" for each in (named, yours))
            yield "push constant {} is {} in the GLSL and {} in the YAML.".format(number, *texts)


def _check_constants(variant: Variant, reflection: Reflection) -> Iterator[str]:
    wanted = {constant.id: (name, constant) for name, constant in variant.specialization.items()}
    for number, (found, have) in reflection.specialization.items():
        if number not in wanted:
            yield f"specialization constant {number} ('{found}') is not in the YAML."
            continue
        name, want = wanted[number]
        what = f"specialization constant {number} ('{name}')"
        if found not in ("", name):
            yield f"{what} is named '{found}' in the GLSL."
        if have.type != want.type:
            yield f"{what} is {have.type} in the GLSL and {want.type} in the YAML."
        default = (
            struct.unpack("<f", struct.pack("<f", want.default))[0] if want.type == "float" else want.default
        )
        if found and not want.overridden and have.default != default:
            yield f"{what} is {have.default} by default in the GLSL and {want.default} in the YAML."


def _check_sizes(variant: Variant, reflection: Reflection) -> Iterator[str]:
    if reflection.local_size != variant.local_size():
        yield f"the local size is {reflection.local_size} in the GLSL and {variant.local_size()} in the YAML."
    for axis, number, expression in zip(
        "xyz", reflection.local_size_ids, variant.local_size_text, strict=True
    ):
        constant = variant.specialization.get(expression.text)
        if number != (constant.id if constant else None):
            yield (
                f"local size {axis}: constant_id is {number} in the GLSL, and the YAML says"
                f" '{expression.text}'."
            )
    if reflection.shared_bytes != variant.shared_bytes():
        yield (
            f"shared memory is {reflection.shared_bytes} bytes in the GLSL and {variant.shared_bytes()} in"
            " the YAML."
        )


def _check_requires(variant: Variant, reflection: Reflection) -> Iterator[str]:
    for number in sorted(reflection.capabilities & FEATURES.keys()):
        name, feature = FEATURES[number]
        if feature not in variant.requires:
            yield f"the SPIR-V has the capability {name}; add 'requires: {{{feature}: true}}'."


def _check_loops(variant: Variant, reflection: Reflection) -> Iterator[str]:
    """Yield a problem if a shader has loops but declares no iterations. Plans need them, because a driver
    may end long loops (lavapipe after 65,535; see `vkq.runtime.builder.lets_loop`)."""
    said = variant.iterations_text.text != "0"
    if reflection.loops and not said:
        yield f"the SPIR-V has {reflection.loops} loops; declare their iterations in the YAML ('iterations')."
