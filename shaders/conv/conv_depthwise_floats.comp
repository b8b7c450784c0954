// Depthwise convolution of float images: every output channel reads one input channel. The weights are int8,
// or float32 with each product and sum rounded (scheme f32). y = sum * scale + bias, with the sum over (kh,
// kw) in order. Kernel and stride along w are constants.
//
// Memory    x and y: NCHW, float32 or float16 (float_numbers.glslh); (WHOLE_LINES) lines of whole vectors of
//           4 numbers; w and the parameters of channels: see the taps.
// Threads   an invocation computes ROWS lines x PIXELS pixels of a channel; neighbours compute neighbouring
//           pixels.
// Needs     no shared memory and no barrier.
//
//   y: ROWS lines x PIXELS pixels   | 0 .. 0 | 1 .. 1 | ..    which invocation, of one channel
//                                   | 0 .. 0 | 1 .. 1 | ..
//   x: the lines under them, each number read once for all pixels 0 of a line that see it
#version 450
#extension GL_EXT_control_flow_attributes : require
#if FLOAT16_IMAGES && !WHOLE_LINES
#extension GL_EXT_shader_16bit_storage : require
#endif

layout(local_size_x_id = 0) in;
#include "float_numbers.glslh"
#include "push.glslh"
#include "workgroup.glslh"

// The taps declare LOCAL_X (and LOCAL_Y), the buffers and
//   LINES                        input lines that the output lines read
//   void begin()                 set the position, and load the weights
//   void multiply_line(uint k)   multiply input line k (counted from the first) by the taps that read it
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
