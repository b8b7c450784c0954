// Direct int8 convolution with exact int32 accumulation: any kernel, stride, dilation, padding and groups.
// With DEPTHWISE, each input channel has any number of output channels.
//
// Memory    x: int8 words of kPackedInt8_4W4C or, if BLOCKED, kPackedInt8_16C; w: int8 taps, whose order
//           conv_taps.glslh or conv_taps_depthwise.glslh states; channels: int32 parameters of output
//           channels (gemm_output.glslh); y: int8 in the layout of x, or float32 NCHW.
// Threads   a workgroup computes LOCAL_X blocks of channels x LOCAL_Y blocks of pixels; an invocation
//           computes 4 pixels x 4 channels.
// Needs     no barrier; shared memory only for a long k in the float form.
//
//   a line of y   | 0 0 0 0 | 1 1 1 1 | 2 2 2 2 | ..   a number: the invocation that computes the pixel, for
//                                                      four channels, with 16 sums in registers
//   x: the pixels that invocation 1 reads, if a line has three taps: 4 5 6 7 8 9
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
layout(constant_id = 2) const bool ROW_SUMS = false;    // compute the sums of x that weight zero points need
layout(constant_id = 3) const bool SLIDE = false;       // stride_w and dilation_w are 1
#if DEPTHWISE
layout(constant_id = 4) const bool ONE_TO_ONE = false;  // OC = IC, so lane i of x belongs to lane i of y
#define Weights int
#else
// sum one output channel after the other, to use fewer registers
layout(constant_id = 4) const bool IN_TURN = false;
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
// conv_taps.glslh or conv_taps_depthwise.glslh defines
//   void begin_taps(Block b)                set the block's position in x, and load its first weights
//   void multiply_line(Line line, Block b)  multiply the next line of taps, for all channels of the block
//   void finish(Block b, out ivec4 acc[4])  return the accumulators of four pixels, with the offsets added
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
