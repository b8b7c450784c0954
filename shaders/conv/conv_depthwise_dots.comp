// Depthwise int8 convolution with packed dot products: OC = IC, kernels of 3x3 or 5x5, stride 1 or 2.
//
// A dot product needs four bytes of one channel, but a word of x holds four channels of a pixel. So an
// invocation transposes four words: those of four neighbours on an input line, or (TALL) of four input lines
// in one column. A transposed word holds four input pixels of one channel, and serves all output pixels that
// read any of these pixels.
//
// Memory    x, y: int8 images, read as words of kPackedInt8_16C (BLOCKED 1) or vectors of kPackedInt8_4W4C;
//           w: int8 taps, whose order depthwise_lines.glslh or (TALL) depthwise_columns.glslh states;
//           channels: int32 parameters of output channels (gemm_output.glslh).
// Threads   an invocation computes ROWS lines x 4 pixels x 4 channels. Neighbouring invocations compute
//           neighbouring pixels; in kPackedInt8_16C, four neighbouring invocations compute the four blocks of
//           channels of the same pixels.
// Needs     no shared memory and no barrier.
//
//   y: ROWS lines x 4 pixels   | 0 0 0 0 | 1 1 1 1 | ..    a number: the invocation that computes the pixel,
//                              | 0 0 0 0 | 1 1 1 1 | ..    for 4 channels
//   x: a strip (an input line or column) is transposed: a word holds four input pixels of one channel, which
//   serve all output pixels 0 that read them
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

// A strip is an input line (depthwise_lines.glslh) or an input column (depthwise_columns.glslh). These files
// define
//   STRIPS                       the number of strips that the output pixels read
//   bool locate(uint i)          set the pixels and channels of invocation i; return false if it has none
//   void begin()                 set the position in x, and load the data that all strips need
//   void multiply_strip(int k)   add the products of strip k
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
