// Depthwise convolution in int8 on packed dot products: OC = IC, kernels of 3x3 or 5x5, stride 1 or 2.
//
// A dot product needs four bytes of one channel, but a word holds four channels of a pixel. So an invocation
// transposes four words: those of four neighbours on an input line, or (TALL) of four input lines in one
// column. Each word then holds four input pixels of one channel, and serves all output pixels that read
// these.
//
// Memory    x, y: words of kPackedInt8_16C (BLOCKED 1) or vectors of kPackedInt8_4W4C; w: see the strips;
//           channels: gemm_output.glslh.
// Threads   an invocation computes ROWS lines x 4 pixels x 4 channels; neighbours compute neighbouring
//           pixels, in kPackedInt8_16C after the four blocks of channels of a pixel.
// Needs     no shared memory and no barrier.
//
//   y: ROWS lines x 4 pixels   | 0 0 0 0 | 1 1 1 1 | ..    which invocation, each with 4 channels
//                              | 0 0 0 0 | 1 1 1 1 | ..
//   x: a strip, which is an input line or column, transposed: four taps of a channel in a word, for all 0
//   that see them
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_integer_dot_product : require

#include "sizes.glslh"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 2) const bool ROW_SUMS = false;

#if BLOCKED
#define Element int
#else
#define Element ivec4
#endif
#ifdef TEXELS
layout(set = 0, binding = 0) uniform isamplerBuffer x;
layout(set = 0, binding = 1) uniform isamplerBuffer w;
layout(set = 0, binding = 2) uniform isamplerBuffer channels;
#else
layout(set = 0, binding = 0) readonly buffer X { Element x[]; };
layout(set = 0, binding = 1) readonly buffer W { ivec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { ivec4 channels[]; };
#endif
layout(set = 0, binding = 3) buffer Y { Element y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#define OUT 1
#define NO_STORE_BLOCK

// The strips define
//   STRIPS                       the input columns or lines that the output pixels read
//   bool locate(uint i)          find the pixels and channels of invocation i; false if there are none
//   void begin()                 find the inputs, and load what all strips need
//   void multiply_strip(int k)   add the products of input column or line k
//   void store_results()         requantize and store the results
#if TALL
#include "depthwise_columns.glslh"
#else
#include "depthwise_lines.glslh"
#endif

void main() {
  if (locate(workgroup_index() * LOCAL_X + gl_LocalInvocationID.x)) {
    begin();
    [[unroll]] for (int k = 0; k < STRIPS; k++) multiply_strip(k);
    store_results();
  }
}
