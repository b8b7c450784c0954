// Y[M,N] = (X[M,K] W[N,K]^T) * scale[n] + bias[n] in float16 arithmetic, for matrices and as an implicit GEMM
// for convolutions. Within a tap, 16 consecutive products are summed in float16, and these sums are added in
// float32.
//
// Memory    x: float16 in runs of 8 k or channels, [image][group][run][pixel][8] (runs_q8csw.comp); w:
//           float16 [group][tap][k][4 n4] (halves_weights.comp), k of a tap padded with zeros to whole 16;
//           `unit`: the factor of the sums that undoes the weights' scaling; channels and y:
//           float_output.glslh.
// Threads   a workgroup is LOCAL_X x LOCAL_Y invocations; each computes TILE_M neighbouring pixels of a line
//           (a matrix is one line of rows) x TILE_N4 blocks of four channels, LOCAL_X or LOCAL_Y apart.
//           Neighbours along x have neighbouring blocks of channels, or (PIXELS) of pixels.
// Needs     float16 arithmetic; also 16-bit storage unless it reads words of two halves (WORDS).
//
//   y of a workgroup, TILE_M = TILE_N4 = 2: a cell is a row (a pixel) x four channels, its number that of
//   its invocation, whose sums are in registers
//       LOCAL_X       LOCAL_X
//     +---+---+-   +---+---+-
//     | 0 | 1 |..  | 0 | 1 |..    LOCAL_Y pairs of rows; PIXELS: LOCAL_X pairs, and LOCAL_Y blocks of
//     | 0 | 1 |..  | 0 | 1 |..    channels twice
#version 450
#extension GL_EXT_control_flow_attributes : require
#if !WORDS
#extension GL_EXT_shader_16bit_storage : require
#endif
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

layout(local_size_x_id = 0, local_size_y_id = 1) in;
layout(constant_id = 0) const uint LOCAL_X = 8;
layout(constant_id = 1) const uint LOCAL_Y = 8;
layout(constant_id = 4) const uint TILE_M = 4;
layout(constant_id = 5) const uint TILE_N4 = 1;
layout(constant_id = 6) const bool PIXELS = false;
layout(constant_id = 7) const bool PADDED = false;   // taps may lie outside of the image
layout(constant_id = 8) const bool AT_ONCE = false;  // read 16 k at once, in more registers

#include "float_numbers.glslh"
#if WORDS
#define Four uvec2
f16vec4 four_of(uvec2 words) { return f16vec4(unpackFloat2x16(words.x), unpackFloat2x16(words.y)); }
#else
#define Four f16vec4
#define four_of(numbers) numbers
#endif
layout(set = 0, binding = 0) readonly buffer X { Four x[]; };
layout(set = 0, binding = 1) readonly buffer W { Four w[]; };
layout(set = 0, binding = 2) readonly buffer Channels { vec4 channels[]; };
layout(set = 0, binding = 3) writeonly buffer Y { Number y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "float_output.glslh"

vec4 sums[TILE_M][TILE_N4];
f16vec4 parts[TILE_M][TILE_N4];  // sums of 16 products
uint x_at, w_at;  // offsets of the next four k: of the first pixel, of the first channels
uint x_places[TILE_M], w_places[TILE_N4];
bool inside[TILE_M];

// Multiply the next four k, the first (half_ 0) or second half of a run.
void multiply(uint half_) {
  f16vec4 values[TILE_M];
  [[unroll]] for (uint i = 0u; i < TILE_M; i++) {
    f16vec4 value = four_of(x[x_at + x_places[i]]);
    values[i] = !PADDED || inside[i] ? value : f16vec4(0.0);
  }
  [[unroll]] for (uint k = 0u; k < 4u; k++) {
    [[unroll]] for (uint j = 0u; j < TILE_N4; j++) {
      f16vec4 weights = four_of(w[w_at + k * p.n4 + w_places[j]]);
      [[unroll]] for (uint i = 0u; i < TILE_M; i++) parts[i][j] += values[i][k] * weights;
    }
  }
  x_at += half_ == 0u ? 1u : 2u * p.x_plane - 1u;
  w_at += 4u * p.n4;
}

// Multiply a tap. AT_ONCE unrolls the inner loop: some drivers combine neighbouring reads of an unrolled loop
// into one, and then split the result; others fuse two products into one instruction only in an unrolled
// loop.
void multiply_tap() {
  [[dont_unroll]] for (uint first = 0u; first < p.k4; first += 4u) {
    [[unroll]] for (uint i = 0u; i < TILE_M; i++)
      [[unroll]] for (uint j = 0u; j < TILE_N4; j++) parts[i][j] = f16vec4(0.0);
    if (AT_ONCE) {
      [[unroll]] for (uint i = 0u; i < 4u; i++) multiply(i % 2u);
    } else {
      [[dont_unroll]] for (uint i = 0u; i < 4u; i++) multiply(i % 2u);
    }
    [[unroll]] for (uint i = 0u; i < TILE_M; i++)
      [[unroll]] for (uint j = 0u; j < TILE_N4; j++) sums[i][j] += vec4(parts[i][j]);
  }
}

void main() {
  uint across = ceil_div(p.ow, TILE_M), units = p.lines * across;
  uint lanes_m = PIXELS ? LOCAL_X : LOCAL_Y, lanes_n = PIXELS ? LOCAL_Y : LOCAL_X;
  uint tiles_m = ceil_div(units, lanes_m), tiles_n = ceil_div(p.n4, lanes_n * TILE_N4);
  uint tile = workgroup_index(), group = tile / (tiles_n * tiles_m);
  uvec2 lane = PIXELS ? gl_LocalInvocationID.xy : gl_LocalInvocationID.yx;
  uint unit = tile / tiles_n % tiles_m * lanes_m + lane.x, real = min(unit, units - 1u);
  uint n4 = tile % tiles_n * lanes_n * TILE_N4 + lane.y;
  uint line = real / across, image = line / p.oh, ow = (real - line * across) * TILE_M;

  [[unroll]] for (uint j = 0u; j < TILE_N4; j++) w_places[j] = min(n4 + j * lanes_n, p.n4 - 1u);
  [[unroll]] for (uint i = 0u; i < TILE_M; i++)
    [[unroll]] for (uint j = 0u; j < TILE_N4; j++) sums[i][j] = vec4(0.0);
  for (uint kh = 0u; kh < p.kh; kh++) {
    uint h = (line - image * p.oh) * p.stride_h + kh * p.dilation_h - p.pad_t;
    for (uint kw = 0u; kw < p.kw && h < p.h; kw++) {
      [[unroll]] for (uint i = 0u; i < TILE_M; i++) {
        uint column = (ow + i) * p.stride_w + kw * p.dilation_w - p.pad_l;
        inside[i] = column < p.w;
        x_places[i] = 2u * min(column, p.w - 1u);
      }
      x_at = 2u * ((image * p.groups + group) * (p.k4 / 2u) * p.x_plane + h * p.w);
      w_at = ((group * p.kh + kh) * p.kw + kw) * 4u * p.k4 * p.n4;
      multiply_tap();
    }
  }
  [[unroll]] for (uint j = 0u; j < TILE_N4; j++) {
    uint column = n4 + j * lanes_n, c4 = group * p.n4 + column;
    [[unroll]] for (uint i = 0u; i < TILE_M; i++)
      if (column < p.n4 && unit < units && ow + i < p.ow)
        store_row(line * p.ow + ow + i, c4, output_values(sums[i][j] * p.unit, c4));
  }
}
