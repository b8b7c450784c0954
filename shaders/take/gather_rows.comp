// y = take(x, id, axis): copy slices of x, selected by ids on the device. A negative id counts from the end
// of the axis; an id outside the axis selects the nearest slice.
//
// Memory    id: int32. BYTES: x, y: int8 in kPackedInt8_4H4W, whose rows are the last axis. Otherwise: x, y:
//           row-major rows of ELEMENT, which is a 32-bit word or a vector of four words.
// Threads   BYTES: one invocation copies four columns of four rows of y; neighbouring invocations copy
//           neighbouring columns. Otherwise: one invocation copies one ELEMENT.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const bool ALONE = false;  // the axis is the first one, and each id selects one row

#if BYTES
#define ELEMENT ivec4
layout(set = 0, binding = 0) readonly buffer X { int x[]; };
#else
layout(set = 0, binding = 0) readonly buffer X { ELEMENT x[]; };
#endif
layout(set = 0, binding = 1) readonly buffer Id { int id[]; };
layout(set = 0, binding = 2) writeonly buffer Y { ELEMENT y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint elements;  // number of elements of y
  uint width;     // number of elements of a row
  uint rows;      // number of rows of y
  uint inner;     // number of rows that an id selects
  uint ids;
  int axis;       // length of the axis
} p;

#include "workgroup.glslh"

// Return the row of x from which a row of y is copied.
uint source_of(uint row) {
  uint whole = ALONE ? row : row / p.inner, part = row - whole * p.inner;
  uint outer = ALONE ? 0u : whole / p.ids;
  int at = id[whole - outer * p.ids];
  at = clamp(at < 0 ? at + p.axis : at, 0, p.axis - 1);
  return ALONE ? uint(at) : (outer * uint(p.axis) + uint(at)) * p.inner + part;
}

#if BYTES
#define TABLE(at) x[at]
#include "table_rows.glslh"
#endif

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (i < p.elements) {
    uint row = i / p.width, column = i - row * p.width;
#if BYTES
    y[i] = table_rows(row, column);
#else
    y[i] = x[source_of(row) * p.width + column];
#endif
  }
}
