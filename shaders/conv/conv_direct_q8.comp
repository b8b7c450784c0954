// Direct convolution in int8 with exact int32 accumulation: any kernel, stride, dilation, padding and groups,
// or (DEPTHWISE) any number of outputs for each input channel.
//
// Memory    x: words of kPackedInt8_4W4C or kPackedInt8_16C (BLOCKED); w: see the taps; channels:
//           gemm_output.glslh; y: as x, or float32 NCHW.
// Threads   a workgroup is LOCAL_X channel blocks x LOCAL_Y pixel blocks; an invocation computes 4 pixels x 4
//           channels.
// Needs     no barrier; shared memory only for a long k in the float form.
//
//   a line of y   | 0 0 0 0 | 1 1 1 1 | 2 2 2 2 | ..   LOCAL_Y blocks of pixels x LOCAL_X blocks of four
//                                                      channels: a workgroup; an invocation: one of each,
//   x under 1, three taps: 4 5 6 7 8 9                  16 sums in registers
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_null_initializer : require
#if !DEPTHWISE && !defined(FLOAT_LANES)
#extension GL_EXT_integer_dot_product : require
#endif

#include "sizes.glslh"
layout(local_size_x_id = 0, local_size_y_id = 1) in;
layout(constant_id = 0) const uint LOCAL_X = 8;
layout(constant_id = 1) const uint LOCAL_Y = 8;
layout(constant_id = 2) const bool ROW_SUMS = false;    // compute sums of x, for weight zero points
layout(constant_id = 3) const bool SLIDE = false;       // stride_w and dilation_w are 1
#if DEPTHWISE
layout(constant_id = 4) const bool ONE_TO_ONE = false;  // OC = IC: a lane of x belongs to the same lane of y
#define Weights int
#else
layout(constant_id = 4) const bool IN_TURN = false;     // one output channel at a time: fewer registers
#define Weights ivec4
#endif

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) readonly buffer W { Weights w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { ivec4 channels[]; };
#if OUT == 1
layout(set = 0, binding = 3) buffer Y { int y[]; };
#else
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };
#endif

#include "push.glslh"
#include "workgroup.glslh"
#define INVOCATIONS (LOCAL_X * LOCAL_Y)
// The taps are multiplied by
//   void begin_taps(Block b)                find the block's inputs and its first weights
//   void multiply_line(Line line, Block b)  multiply the next line of taps, for all channels of the block
//   void finish(Block b, out ivec4 acc[4])  return the accumulators of four pixels, with offsets
#if DEPTHWISE
#include "conv_taps_depthwise.glslh"
#else
#include "conv_taps.glslh"
#endif

void main() {
  Block b = this_block();
  begin_taps(b);
  for (uint kh = 0u; kh < sweep.kh; kh++) multiply_line(input_line(b, kh), b);
  ivec4 acc[4];
  finish(b, acc);
  store_pixels(b, acc);
}
