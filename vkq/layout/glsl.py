"""Generate the GLSL include files of the layouts."""

from __future__ import annotations

from vkq.layout.pack import activation_layouts, layouts


def glsl_includes() -> dict[str, str]:
    """Return {name of the include file: its text}: a file ``layout/<name>.glslh`` for each layout, and
    ``layout/any.glslh``."""
    return {f"layout/{name}.glslh": found.glsl() for name, found in layouts().items()} | {
        "layout/any.glslh": _any_glsl()
    }


def _any_glsl() -> str:
    """Return GLSL index functions with the number of the layout as an argument, for shaders whose layout is
    a specialization constant."""
    names = [found.name for found in activation_layouts()]
    text = (
        "// The index functions of the activation layouts, chosen by number"
        " (vkq.layout.activation_layouts).\n"
    )
    text += "#ifndef LAYOUT_ANY_GLSLH\n#define LAYOUT_ANY_GLSLH\n"
    text += "".join(f'#include "layout/{name}.glslh"\n' for name in names)
    functions = (
        ("uint", "word", "uvec4 e, uvec4 extent", "e, extent"),
        ("uint", "lane", "uvec4 e", "e"),
        ("uvec4", "element", "uint word, uint lane, uvec4 extent", "word, lane, extent"),
    )
    for result, function, parameters, arguments in functions:
        calls = "".join(
            f"  if (which == {i}) return {n}_{function}({arguments});\n" for i, n in enumerate(names[:-1])
        )
        last = f"  return {names[-1]}_{function}({arguments});\n"
        text += f"{result} any_layout_{function}(int which, {parameters}) {{\n{calls}{last}}}\n"
    return text + "#endif\n"
