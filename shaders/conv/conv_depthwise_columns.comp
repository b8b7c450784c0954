// Depthwise convolution in int8 on packed dot products: OC = IC, kernels of 3x3 or 5x5, stride 1 or 2.
//
// A dot product needs four bytes of one channel, but a word holds four channels of a pixel. So four words, of
// four input lines in one column, are transposed: each then holds four input pixels of that column for one
// channel. They serve all ROWS output lines and all KERNEL output pixels that read the column. An output
// line's weights for a word are its taps; for pixels that it does not read, they are the channel's zero
// point, which counts as zero.
//
// Memory    x, y: kPackedInt8_16C words; w: [column][output line][word of taps][c4] of four channels x four
//           lines; channels: gemm_output.glslh.
// Threads   an invocation computes ROWS x COLUMNS pixels x 4 channels. Four neighbouring
//           invocations compute the 16 channels of a block, the next four the next pixels of the line.
// Needs     no shared memory and no barrier.
//
//   y: ROWS lines x COLUMNS pixels   | 0 0 0 0 | 1 1 1 1 | ..    which invocation, each with 4 channels
//                                    | 0 0 0 0 | 1 1 1 1 | ..
//   x: a column of LINES words, transposed: four taps of a channel in a word, for all 0 that see them
#version 450
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_integer_dot_product : require

#include "sizes.glslh"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 2) const bool ROW_SUMS = false;

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) readonly buffer W { ivec4 w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { ivec4 channels[]; };
layout(set = 0, binding = 3) buffer Y { int y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "dot4x8.glslh"
#include "transposed4x4.glslh"
#define OUT 1
#define NO_STORE_BLOCK
#include "gemm_output.glslh"

#define LINES ((ROWS - 1) * STRIDE + KERNEL)          // input lines that the output lines read
#define WORDS ((LINES + 3) / 4)                       // words of a column of one channel
#define INPUT_COLUMNS ((COLUMNS - 1) * STRIDE + KERNEL)
const bool SUM_ROWS = ROW_SUMS || DOT == DOT_U8U8;

uint first_pixel[LINES];  // first pixel of each input line
bool inside_line[LINES];

// Return true if an output row reads input word `word` of a column.
bool sees(int row, int word) { return row * STRIDE < 4 * word + 4 && row * STRIDE + KERNEL > 4 * word; }

int input_word(int line, uint column, uint word_of_block) {
  // Both selections choose between variables, so that the compiler emits no branch.
  bool inside = inside_line[line] && column < p.w;
  uint at = 4u * (first_pixel[line] + column) + word_of_block;
  at = inside ? at : 0u;
  int outside = int8x4_broadcast(p.x_zero_point), word = x[at];
  return inside ? word : outside;
}

// Load a word of four pixels of one column, transposed, for each of four channels.
ivec4 column_words(int word, uint column, uint word_of_block) {
  ivec4 lines = ivec4(0);
  [[unroll]] for (int i = 0; i < 4; i++)
    if (4 * word + i < LINES) lines[i] = input_word(4 * word + i, column, word_of_block);
  return transposed4x4(lines);
}

void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x, q = i % 4u, at = i / 4u;
  uint row_groups = ceil_div(p.oh, ROWS), column_groups = ceil_div(p.ow, COLUMNS);
  uint line = at / column_groups, plane = line / row_groups, block = plane / p.images;
  uint ow = (at - line * column_groups) * COLUMNS, oh = (line - plane * row_groups) * ROWS;
  uint image = plane - block * p.images, c4 = 4u * block + q, y_c4 = ceil_div(p.channels, 4u);
  if (c4 < y_c4) {
    [[unroll]] for (int k = 0; k < LINES; k++) {
      uint h = oh * STRIDE - p.pad_t + uint(k);
      inside_line[k] = h < p.h;
      first_pixel[k] = (plane * p.h + (inside_line[k] ? h : 0u)) * p.w;
    }
    ivec4 sums[ROWS * COLUMNS], x_sums[ROWS * COLUMNS];
    [[unroll]] for (int k = 0; k < ROWS * COLUMNS; k++) sums[k] = x_sums[k] = ivec4(0);
    [[unroll]] for (int j = 0; j < INPUT_COLUMNS; j++) {
      [[unroll]] for (int word = 0; word < WORDS; word++) {
        ivec4 taps = column_words(word, ow * STRIDE - p.pad_l + uint(j), q);
        [[unroll]] for (int column = 0; column < COLUMNS; column++) {
          int kw = j - column * STRIDE;
          if (kw < 0 || kw >= KERNEL) continue;
          [[unroll]] for (int row = 0; row < ROWS; row++) {
            if (!sees(row, word)) continue;
            ivec4 weights = w[uint((kw * ROWS + row) * WORDS + word) * y_c4 + c4];
            [[unroll]] for (int c = 0; c < 4; c++) {
              XOperand xs = x_operand(taps[c]);
              sums[row * COLUMNS + column][c] += dot4x8(xs, w_operand(weights[c]));
              if (SUM_ROWS) x_sums[row * COLUMNS + column][c] += lane_sum(xs);
            }
          }
        }
      }
    }
    ivec4 offset = channel_block(c4, OFFSET), w_zero_point = channel_block(c4, W_ZERO_POINT);
    [[unroll]] for (uint row = 0u; row < ROWS; row++) {
      [[unroll]] for (uint first = 0u; first < COLUMNS; first += 4u) {
        uint at = 4u * ((plane * p.oh + oh + row) * p.ow + ow + first) + q;
        ivec4 words, others = ivec4(0);
        [[unroll]] for (uint k = 0u; k < 4u; k++) {
          ivec4 acc = sums[row * COLUMNS + first + k] + offset;
          if (SUM_ROWS) acc -= w_zero_point * x_sums[row * COLUMNS + first + k];
          words[k] = output_word(acc, c4);
        }
        [[unroll]] for (uint k = 0u; k < 4u; k++)
          if (HAS_SUM && oh + row < p.oh && ow + first + k < p.ow) others[k] = y[at + 4u * k];
        words = after(words, others);
        [[unroll]] for (uint k = 0u; k < 4u; k++)
          if (oh + row < p.oh && ow + first + k < p.ow) y[at + 4u * k] = words[k];
      }
    }
  }
}
