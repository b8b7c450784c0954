// Depthwise convolution of float images: every output channel reads one input channel. The weights are int8,
// or (scheme f32) float32; with float32, each product and each sum is rounded. y = sum * scale + bias; the
// sum is computed in the order (kh, kw). The kernel size and the stride along w are specialization
// constants.
//
// Memory    x and y: NCHW, float32 or float16 (float_numbers.glslh); with WHOLE_LINES, lines are whole
//           vectors of 4 numbers. w: taps, and the float32 parameters of channels: depthwise_numbers.glslh
//           and depthwise_vectors.glslh state their order.
// Threads   an invocation computes ROWS lines x PIXELS pixels of a channel; neighbouring invocations compute
//           neighbouring pixels.
// Needs     no shared memory and no barrier.
//
//   y: ROWS lines x PIXELS pixels   | 0 .. 0 | 1 .. 1 | ..    a number: the invocation that computes the
//                                   | 0 .. 0 | 1 .. 1 | ..    pixel of one channel
//   x: the input lines of these pixels; an invocation reads each number once for all its pixels of a line
#version 450
#extension GL_EXT_control_flow_attributes : require
#if FLOAT16_IMAGES && !WHOLE_LINES
#extension GL_EXT_shader_16bit_storage : require
#endif

layout(local_size_x_id = 0) in;
#include "float_numbers.glslh"
#include "push.glslh"
#include "workgroup.glslh"

// depthwise_numbers.glslh or depthwise_vectors.glslh declares LOCAL_X (and LOCAL_Y) and the buffers, and
// defines
//   LINES                        the number of input lines that the output lines read
//   void begin()                 set the position, and load the weights
//   void multiply_line(uint k)   multiply input line k, counted from the first, by all taps that read it
//   void store_results()         scale and store the sums
#define PIXELS 8u
#if WHOLE_LINES
#include "depthwise_vectors.glslh"
#else
#include "depthwise_numbers.glslh"
#endif

void main() {
  begin();
  [[unroll]] for (uint k = 0u; k < LINES; k++) multiply_line(k);
  store_results();
}
