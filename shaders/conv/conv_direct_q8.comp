// Convolution in int8 with exact int32 accumulation, straight from the image: any kernel, stride, dilation,
// padding and groups.
//
// A group's channels need not begin at a word of four: the host lays the weights of four output channels
// against the `span` input words that hold any channel of their groups, with each channel's zero point (which
// counts as zero) in the lanes that are not its own. So no byte is ever shifted, and groups of any size use
// whole dot products.
//
// Memory    x: kPackedInt8_4W4C words; w: blocks [kh][span][kw][c4] of 4 output channels x 4 lanes; channels: gemm_output.glslh;
//           y: kPackedInt8_4W4C words or float32 NCHW.
// Threads   a workgroup is LOCAL_X channel blocks x LOCAL_Y pixel blocks; an invocation computes 4 pixels x 4 channels.
// Needs     no shared memory and no barrier.
#version 450
#extension GL_EXT_control_flow_attributes : require
#if DOT != 3
#extension GL_EXT_integer_dot_product : require
#endif

layout(local_size_x_id = 0, local_size_y_id = 1) in;
layout(constant_id = 0) const uint LOCAL_X = 8;
layout(constant_id = 1) const uint LOCAL_Y = 8;
layout(constant_id = 2) const bool ROW_SUMS = false;
layout(constant_id = 3) const bool SLIDE = false;  // stride_w and dilation_w are 1

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) readonly buffer W { ivec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { ivec4 channels[]; };
#if OUT == 1
layout(set = 0, binding = 3) writeonly buffer Y { int y[]; };
#else
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };
#endif

#include "push.glslh"
#include "workgroup.glslh"
#include "dot4x8.glslh"
#include "conv_block.glslh"

const bool SUM_ROWS = ROW_SUMS || DOT == DOT_U8U8;
ivec4 acc[4];
ivec4 row_sums = ivec4(0);
Sum4 sums[4];
Sum4 x_sums = Sum4(0);

// From the dot form's type to int32: for float lanes often enough that they stay exact.
void flush_sums() {
  [[unroll]] for (int r = 0; r < 4; r++) {
    acc[r] += ivec4(sums[r]);
    sums[r] = Sum4(0);
  }
  row_sums += ivec4(x_sums);
  x_sums = Sum4(0);
}

void main() {
  Block b = this_block();
  uint y_c4 = ceil_div(p.channels, 4u), first_word = 4u * b.c4 / p.group_oc * p.group_ic / 4u, at = b.c4, pending = 0u;
  [[unroll]] for (int r = 0; r < 4; r++) { acc[r] = ivec4(0); sums[r] = Sum4(0); }
  for (uint kh = 0u; kh < p.kh; kh++) {
    Line line = input_line(b, kh);
    for (uint s = 0u; s < p.span; s++) {
      uint word = min(first_word + s, p.x_c4 - 1u);  // beyond the last word the weights count as zero
      ivec4 window = window_before(line, b, word);
      for (uint kw = 0u; kw < p.kw; kw++) {
        window = window_at(window, line, b, kw, word);
        ivec4 words = w[at];
        at += y_c4;
        WOperand ws[4];
        [[unroll]] for (int c = 0; c < 4; c++) ws[c] = w_operand(words[c]);
        [[unroll]] for (int r = 0; r < 4; r++) {
          XOperand xr = x_operand(window[r]);
          [[unroll]] for (int c = 0; c < 4; c++) sums[r][c] += dot4x8(xr, ws[c]);
          if (SUM_ROWS) x_sums[r] += lane_sum(xr);
        }
        if (++pending == WORDS_PER_FLUSH) { flush_sums(); pending = 0u; }
      }
    }
  }
  flush_sums();
  [[unroll]] for (int r = 0; r < 4; r++) acc[r] = corrected(acc[r], row_sums[r], b.c4);
  store_pixels(b, acc);
}
