// Declarations shared by the files that bind the extension's classes to Python.
#pragma once
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "packing.hpp"
#include "queue.hpp"

namespace vkq {

using Bytes = nb::ndarray<uint8_t, nb::c_contig, nb::device::cpu>;
using ReadBytes = nb::ndarray<const uint8_t, nb::c_contig, nb::device::cpu>;

// Throws if the size of an array or a buffer is not that of the layout.
void checkSizes(const Packing &p, uint64_t bytes, uint64_t words);

void bindMemory(nb::module_ &m);     // Buffer, Arena
void bindPacking(nb::module_ &m);    // Packing
void bindRecording(nb::module_ &m);  // Program, Plan, Recording, Operation
void bindQueue(nb::module_ &m);      // Queue
void bindContext(nb::module_ &m);    // Context

}  // namespace vkq
