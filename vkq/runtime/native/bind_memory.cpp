// Python's classes for device memory, and for packing arrays into layouts on the host.
#include "bindings.hpp"

namespace vkq {

static nb::ndarray<nb::numpy, uint8_t> view(const Buffer &buffer) {
  const PiecePtr piece = buffer.piece;
  Use use(*piece->memory->core);
  if (!piece->mapped()) throw std::out_of_range("not host memory");
  nb::capsule owner(new View(piece), [](void *p) noexcept { delete static_cast<View *>(p); });
  return nb::ndarray<nb::numpy, uint8_t>(piece->host(), {piece->bytes}, owner);
}

static nb::object failure(const Buffer &buffer) {
  if (!buffer.piece->failure) return nb::none();
  const Failure f = *buffer.piece->failure;
  return nb::module_::import_("vkq.device.vulkan").attr("error_for")(static_cast<int>(f.result), f.call);
}

void bindMemory(nb::module_ &m) {
  nb::class_<Buffer>(m, "Buffer",
                     "A range of device memory; its arena gets it back when nothing refers to it.")
      .def_prop_ro("bytes", [](const Buffer &b) { return b.piece->bytes; })
      .def_prop_ro(
          "offset", [](const Buffer &b) { return b.piece->offset; }, "In its block of memory.")
      .def_prop_ro(
          "block", [](const Buffer &b) { return reinterpret_cast<uint64_t>(b.piece->memory.get()); },
          "Which block of memory it lies in, as a number.")
      .def_prop_ro("block_bytes", [](const Buffer &b) { return b.piece->memory->bytes; })
      .def_prop_ro(
          "mapped", [](const Buffer &b) { return b.piece->mapped(); }, "True if the host can map it.")
      .def_prop_ro("failure", failure, "The reason why the content was never computed, or None.")
      .def(
          "check",
          [](const Buffer &b) {
            if (b.piece->failure) throw NeverComputed(*b.piece->failure);
          },
          "Raise if the submission that should have computed the content failed.")
      .def("view", view, "Return the mapped bytes, without a copy.");
  nb::class_<Arena>(m, "Arena")
      .def("allocate", [](Arena &a, uint64_t bytes) { return Buffer{a.allocate(bytes)}; })
      .def("trim", &Arena::trim)
      .def("reset_peak", &Arena::resetPeak)
      .def_prop_ro("largest", [](Arena &a) { return a.largest; })
      .def_prop_ro("allocated_bytes", &Arena::allocatedBytes)
      .def_prop_ro("used_bytes", &Arena::usedBytes)
      .def_prop_ro("peak_bytes", &Arena::peakBytes);
}

using Table = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

static Packing makePacking(std::tuple<uint32_t, uint32_t, uint32_t, uint32_t> e,
                           std::tuple<Table, Table, Table, Table> tables, int lane, uint64_t words) {
  auto copied = [](const Table &t) { return std::vector<uint32_t>(t.data(), t.data() + t.size()); };
  auto &[a, b, c, d] = tables;
  return Packing({std::get<0>(e), std::get<1>(e), std::get<2>(e), std::get<3>(e)},
                 {copied(a), copied(b), copied(c), copied(d)}, lane, words);
}

void checkSizes(const Packing &p, uint64_t bytes, uint64_t words) {
  if (bytes != p.elements() || words / 4 < p.words)
    throw std::invalid_argument("Packing: the array or the buffer has another size than the layout");
}

void bindPacking(nb::module_ &m) {
  nb::class_<Packing>(m, "Packing",
                      "Bytes of a row-major array into the words of a layout and back, on the host.")
      .def(nb::new_(&makePacking), nb::arg("extent"), nb::arg("tables"), nb::arg("lane"), nb::arg("words"))
      .def("pack",
           [](const Packing &p, Bytes words, ReadBytes array, uint8_t flip, uint8_t fill) {
             checkSizes(p, array.nbytes(), words.nbytes());
             Unlocked unlocked;
             p.pack(reinterpret_cast<uint32_t *>(words.data()), array.data(), flip, fill);
           })
      .def("unpack", [](const Packing &p, Bytes array, ReadBytes words, uint8_t flip) {
        checkSizes(p, array.nbytes(), words.nbytes());
        Unlocked unlocked;
        p.unpack(array.data(), reinterpret_cast<const uint32_t *>(words.data()), flip);
      });
}

}  // namespace vkq
