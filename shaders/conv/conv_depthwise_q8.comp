// Depthwise convolution in int8 with exact int32 accumulation: each output channel sees one input channel
// (IC/groups = 1), with any number of outputs for an input channel, and any kernel, stride, dilation and
// padding.
//
// There is no sum over channels for a dot product to make, so this multiplies int32 lanes; it is the same
// under every path.
//
// Memory    x: kPackedInt8_4W4C words; w: words [kh][kw][c4], lane = output channel; channels: gemm_output.glslh;
//           y: kPackedInt8_4W4C words or float32 NCHW.
// Threads   a workgroup is LOCAL_X channel blocks x LOCAL_Y pixel blocks; an invocation computes 4 pixels x 4 channels.
// Needs     no shared memory and no barrier.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0, local_size_y_id = 1) in;
layout(constant_id = 0) const uint LOCAL_X = 8;
layout(constant_id = 1) const uint LOCAL_Y = 8;
layout(constant_id = 2) const bool ROW_SUMS = false;    // weight zero points need the sums of x
layout(constant_id = 3) const bool SLIDE = false;       // stride_w and dilation_w are 1
layout(constant_id = 4) const bool ONE_TO_ONE = false;  // OC = IC: the lanes of x are those of the output

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) readonly buffer W { int w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { ivec4 channels[]; };
#if OUT == 1
layout(set = 0, binding = 3) writeonly buffer Y { int y[]; };
#else
layout(set = 0, binding = 3) writeonly buffer Y { float y[]; };
#endif

#include "push.glslh"
#include "workgroup.glslh"
#include "int8x4.glslh"
#include "conv_block.glslh"

// by output channel: 1 where its input is in the first of two words, else 0; the bit where it begins
ivec4 from_low, shifts;

// The inputs of four output channels, out of the two words that hold them.
ivec4 lanes(Int8x4 low, Int8x4 high) {
  if (ONE_TO_ONE) return int8x4_unpack(low);
  ivec4 result;
  [[unroll]] for (int c = 0; c < 4; c++) result[c] = bitfieldExtract(from_low[c] == 1 ? low : high, shifts[c], 8);
  return result;
}

void main() {
  Block b = this_block();
  uint y_c4 = ceil_div(p.channels, 4u), first = ONE_TO_ONE ? b.c4 : 4u * b.c4 / p.group_oc / 4u, at = b.c4;
  uint second = min(first + 1u, p.x_c4 - 1u);
  [[unroll]] for (uint c = 0u; c < 4u; c++) {
    uint lane = min(4u * b.c4 + c, p.channels - 1u) / p.group_oc - 4u * first;
    from_low[c] = int(lane < 4u);
    shifts[c] = int(8u * (lane % 4u));
  }
  ivec4 acc[4], x_sums[4];
  [[unroll]] for (int r = 0; r < 4; r++) { acc[r] = ivec4(0); x_sums[r] = ivec4(0); }
  for (uint kh = 0u; kh < p.kh; kh++) {
    Line line = input_line(b, kh);
    ivec4 low = window_before(line, b, first), high = ivec4(0);
    if (!ONE_TO_ONE) high = window_before(line, b, second);
    for (uint kw = 0u; kw < p.kw; kw++) {
      low = window_at(low, line, b, kw, first);
      if (!ONE_TO_ONE) high = window_at(high, line, b, kw, second);
      ivec4 ws = int8x4_unpack(w[at]);
      at += y_c4;
      [[unroll]] for (int r = 0; r < 4; r++) {
        ivec4 xs = lanes(low[r], high[r]);
        acc[r] += xs * ws;
        if (ROW_SUMS) x_sums[r] += xs;
      }
    }
  }
  ivec4 offset = channel_block(b.c4, OFFSET), w_zero_point = channel_block(b.c4, W_ZERO_POINT);
  [[unroll]] for (int r = 0; r < 4; r++) acc[r] += offset - w_zero_point * x_sums[r];
  store_pixels(b, acc);
}
