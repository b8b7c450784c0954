// y = take(a, id) op b, or b op take(a, id) with SECOND: select rows of the table a by int32 ids, and combine
// each row with a row of b by binary_q8.comp's operations. A negative id counts from the end. An id before
// the first row selects the first row, and an id after the last row selects the last row.
//
// Memory    a, b, y: int8 in kPackedInt8_4H4W; b has `period` vectors, which repeat over y; id: int32, one
//           for each row of y; table: all results of op, as in binary_q8.comp.
// Threads   one invocation writes one vector: four columns of four rows.
#version 450
#extension GL_EXT_control_flow_attributes : require

#define OP_ADD 0
#define OP_MUL 1
#define OP_TABLE 2

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const bool SECOND = false;
// the float formula is exact for all inputs, so no table is read
layout(constant_id = 6) const bool SURE = false;

layout(set = 0, binding = 0) readonly buffer A { int a[]; };
layout(set = 0, binding = 1) readonly buffer Id { int id[]; };
layout(set = 0, binding = 2) readonly buffer B { ivec4 b[]; };
layout(set = 0, binding = 3) readonly buffer Table { int table[]; };
layout(set = 0, binding = 4) writeonly buffer Y { ivec4 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint count;             // number of vectors of y
  float ra, rb, offset, safe;
  int a_zero, b_zero, y_min, y_max;
  int y_shift;
  uint width;             // number of words in a row
  uint rows;              // number of rows of y
  uint period;            // number of vectors of b
  int axis;               // number of rows of the table a
} p;

#include "workgroup.glslh"
#include "int8x4.glslh"
#include "exact_float.glslh"
#define VECTORS 1
#include "combine.glslh"

uint source_of(uint row) {
  int at = id[row];
  return uint(clamp(at < 0 ? at + p.axis : at, 0, p.axis - 1));
}

#define TABLE(at) a[at]
#include "table_rows.glslh"

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (i < p.count) {
    uint block = i / p.width;
    ivec4 rows = table_rows(block, i - block * p.width), others = b[i % p.period];
    y[i] = combine_vector(SECOND ? others : rows, SECOND ? rows : others);
  }
}
