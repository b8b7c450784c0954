// y = take(a, id) op b: rows of a table, chosen by ids on the device and combined with rows of b as in
// binary_q8.comp; with SECOND, b op take(a, id). A negative id counts from the end, and an id outside the
// table reads the nearest row.
//
// Memory    a, b, y: kPackedInt8_4H4W; the vectors of b repeat; table: as in binary_q8.comp.
// Threads   one invocation writes one vector: four columns of four rows.
#version 450
#extension GL_EXT_control_flow_attributes : require

#define OP_ADD 0
#define OP_MUL 1
#define OP_TABLE 2

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const bool SECOND = false;
layout(constant_id = 6) const bool SURE = false;  // the float formula is exact for all inputs: no table

layout(set = 0, binding = 0) readonly buffer A { int a[]; };
layout(set = 0, binding = 1) readonly buffer Id { int id[]; };
layout(set = 0, binding = 2) readonly buffer B { ivec4 b[]; };
layout(set = 0, binding = 3) readonly buffer Table { int table[]; };
layout(set = 0, binding = 4) writeonly buffer Y { ivec4 y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint count;             // vectors of y
  float ra, rb, offset, safe;
  int a_zero, b_zero, y_min, y_max;
  int y_shift;
  uint width;             // words of a row
  uint rows;              // rows of y
  uint period;            // vectors of b
  int axis;               // rows of the table
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
