// Compute the maximum, or (MEAN) the mean, of each window that slides over float32 images.
//
// The mean is a sum that begins with 0, divided by the number of elements inside the image or, with
// COUNT_PADDING, of all taps. Every operation is rounded to nearest even. The maximum is NaN if an element of
// the window is NaN, and -infinity if no element of the window is inside the image.
//
// Memory    x, y: float32, NCHW.
// Threads   THREADS invocations (a power of two) compute a window together. Each invocation combines every
//           THREADS-th of the window's elements inside the image, in row-major order. Then the invocations
//           reduce in shared memory; each iteration halves the number of active invocations. The order
//           depends on the push constants and THREADS only.
#version 450
#extension GL_EXT_control_flow_attributes : require

layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(constant_id = 1) const uint THREADS = 1;
layout(constant_id = 2) const bool MEAN = false;
layout(constant_id = 3) const bool COUNT_PADDING = false;  // MEAN: padding counts as elements of value 0

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { float y[]; };

#include "push.glslh"
#include "workgroup.glslh"
#include "real_numbers.glslh"

shared float shares[LOCAL_X];

float joined(float a, float b) { return MEAN ? sum(a, b) : larger(a, b); }

// The taps of the kernel along an axis are at positions at, at + dilation, ... Return the index of the
// first tap whose position is not negative, and the number of taps from there on whose position is below
// `end`.
ivec2 inside(int at, int dilation, int kernel, int end) {
  int first = at < 0 ? (dilation - 1 - at) / dilation : 0;
  int last = at < end ? (end - 1 - at) / dilation : -1;
  return ivec2(first, max(min(kernel - 1, last) - first + 1, 0));
}

void main() {
  uint me = gl_LocalInvocationID.x, t = me % THREADS, place = (workgroup_index() * LOCAL_X + me) / THREADS;
  uint line = place / p.ow, ow = place - line * p.ow, plane = line / p.oh, oh = line - plane * p.oh;
  bool real = plane < p.planes;
  int kernel_h = int(p.kernel_h), kernel_w = int(p.kernel_w), pad_t = int(p.pad_t), pad_l = int(p.pad_l);
  ivec2 step = ivec2(p.dilation_h, p.dilation_w), size = ivec2(p.h, p.w);
  ivec2 corner = ivec2(oh * p.stride_h, ow * p.stride_w);  // the window's first element, in the padded image
  ivec2 rows = inside(corner.x - pad_t, step.x, kernel_h, size.x);
  ivec2 columns = inside(corner.y - pad_l, step.y, kernel_w, size.y);
  ivec2 first = corner - ivec2(pad_t, pad_l) + ivec2(rows.x, columns.x) * step;

  float found = MEAN ? 0.0 : uintBitsToFloat(0x80000000u | FLOAT_INFINITY);
  uint elements = real ? uint(rows.y * columns.y) : 0u, wide = max(uint(columns.y), 1u);
  for (uint e = t; e < elements; e += THREADS) {
    ivec2 at = first + ivec2(e / wide, e % wide) * step;
    found = joined(found, x[(plane * p.h + uint(at.x)) * p.w + uint(at.y)]);
  }
  if (THREADS > 1u) {
    shares[me] = found;
    for (uint half_ = THREADS / 2u; half_ > 0u; half_ /= 2u) {
      barrier();
      if (t < half_) {
        found = joined(found, shares[me + half_]);
        shares[me] = found;
      }
    }
  }
  if (t == 0u && real) {
    if (MEAN) {
      if (COUNT_PADDING) {
        rows = inside(corner.x, step.x, kernel_h, size.x + pad_t + int(p.pad_b));
        columns = inside(corner.y, step.y, kernel_w, size.y + pad_l + int(p.pad_r));
      }
      found = divided(found, float(rows.y * columns.y));
    }
    y[place] = found;
  }
}
