// Measure the arithmetic rate of a device: run independent chains of one instruction in registers. The loop
// has no memory traffic.
//
// WHAT 0    packed dot products, acc += dot(acc, neighbour): each product depends on the previous product, so
//           the compiler cannot hoist a product out of the loop
// WHAT 1    float32 multiply-adds, acc = acc * a + b (fused if the device has such an instruction)
// Memory    y: int32, one result for each invocation, so that the compiler keeps the chains.
// Threads   every invocation has 16 chains, and runs PER_LOOP instructions of each chain in an iteration.
#version 450
#extension GL_EXT_control_flow_attributes : require
#if WHAT == 0
#extension GL_EXT_integer_dot_product : require
#endif

#include "sizes.glslh"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;

layout(set = 0, binding = 0) writeonly buffer Y { int y[]; };

layout(push_constant) uniform Push {
  uint first_group;
  uint groups;
  uint loops;
  float a, b;  // a is near 1 and b near 0; push constants hide this from the compiler
} p;

#include "workgroup.glslh"

#if WHAT == 0
#include "dot4x8.glslh"
#define CHAINS 16
int acc[CHAINS];
void start(uint i) {
  [[unroll]] for (int c = 0; c < CHAINS; c++) acc[c] = int(i * 2654435761u) + c * 0x01020304;
}
void steps() {
  [[unroll]] for (int s = 0; s < PER_LOOP; s++) [[unroll]]
    for (int c = 0; c < CHAINS; c++) acc[c] += dot4x8(acc[c], acc[(c + 1) % CHAINS]);
}
int result() {
  int sum = 0;
  [[unroll]] for (int c = 0; c < CHAINS; c++) sum ^= acc[c];
  return sum;
}
#else
#define CHAINS 4
vec4 acc[CHAINS];
void start(uint i) {
  [[unroll]] for (int c = 0; c < CHAINS; c++) acc[c] = vec4(float(i & 255u) + float(c));
}
void steps() {
  [[unroll]] for (int s = 0; s < PER_LOOP; s++)
    [[unroll]] for (int c = 0; c < CHAINS; c++) acc[c] = acc[c] * p.a + p.b;
}
int result() {
  vec4 sum = vec4(0.0);
  [[unroll]] for (int c = 0; c < CHAINS; c++) sum += acc[c];
  return floatBitsToInt(sum.x + sum.y + sum.z + sum.w);
}
#endif

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  start(i);
  for (uint loop = 0u; loop < p.loops; loop++) steps();
  y[i] = result();
}
