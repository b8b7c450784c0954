// vkq._kompute: Kompute's Sequence on a device that vkq opened, with vkq's own dispatch operation, memory and
// error checks.
//
// Kompute records and submits (kp::Sequence, kp::OpBase). What it leaves out is added at two documented
// places: its operation interface (operations.hpp: shared pipelines, full memory barriers, reset timestamps)
// and Vulkan-Hpp's dispatch table (seam.hpp: results that Kompute ignores are noted, fences are reused, tests
// can make the n-th call fail).
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "packing.hpp"
#include "queue.hpp"

namespace vkq {

static std::atomic<bool> ending{false};  // the process ends: Python code may not be run by other threads

static void raise(const char *module, const char *function, VkResult result, const char *call) {
  nb::object error = nb::module_::import_(module).attr(function)(static_cast<int>(result), call);
  PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.ptr())), error.ptr());
}

static void translate(const std::exception_ptr &pointer, void *) {
  if (ending) parkUnlessMain();
  try {
    std::rethrow_exception(pointer);
  } catch (const VulkanError &e) {
    raise("vkq.device.vulkan", "error_for", e.result, e.call);
  } catch (const NeverComputed &e) {
    raise("vkq.device.vulkan", "never_computed", e.failure.result, e.failure.call);
  } catch (const BindingTooLarge &e) {
    PyErr_SetString(nb::module_::import_("vkq.errors").attr("ArgumentError").ptr(), e.what());
  } catch (const UsageError &e) {
    PyErr_SetString(nb::module_::import_("vkq.errors").attr("DeviceError").ptr(), e.what());
  }
}

// What Python holds of an open device.
struct Context {
  std::shared_ptr<Core> core = std::make_shared<Core>();
  std::shared_ptr<Queue> queue = std::make_shared<Queue>(core);

  Context(uint64_t getInstanceProcAddr, uint64_t instance, uint64_t physical, uint64_t device,
          uint64_t vkQueue, uint32_t family, bool wideBarriers, uint64_t maxBinding, std::string name) {
    fillTable(getInstanceProcAddr, instance);
    core->physical = std::make_shared<vk::PhysicalDevice>(reinterpret_cast<VkPhysicalDevice>(physical));
    core->device = std::make_shared<vk::Device>(reinterpret_cast<VkDevice>(device));
    core->queue = std::make_shared<vk::Queue>(reinterpret_cast<VkQueue>(vkQueue));
    core->family = family;
    core->wideBarriers = wideBarriers;
    core->maxBinding = maxBinding;
    core->name = std::move(name);
    makeCache(nullptr, 0);
  }
  void makeCache(const void *data, size_t bytes) {
    Use use(*core);
    VkPipelineCacheCreateInfo info{VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
    info.initialDataSize = bytes;
    info.pInitialData = data;
    VkPipelineCache made = VK_NULL_HANDLE;
    vkTable.vkCreatePipelineCache(core->handle(), &info, nullptr, &made);
    core->check();
    if (core->cache) vkTable.vkDestroyPipelineCache(core->handle(), core->cache, nullptr);
    core->cache = made;
  }
  // A bit for each memory type that a storage buffer can be in.
  uint32_t bufferMemoryTypes() {
    Use use(*core);
    VkBuffer buffer = VK_NULL_HANDLE;
    uint32_t types = makeBuffer(*core, 16, &buffer).memoryTypeBits;
    vkTable.vkDestroyBuffer(core->handle(), buffer, nullptr);
    return types;
  }
  nb::bytes cacheData() {
    Use use(*core);
    size_t bytes = 0;
    vkTable.vkGetPipelineCacheData(core->handle(), core->cache, &bytes, nullptr);
    core->check();
    std::vector<char> data(bytes);
    vkTable.vkGetPipelineCacheData(core->handle(), core->cache, &bytes, data.data());
    core->check();
    return nb::bytes(data.data(), bytes);
  }
  void close() {
    Unlocked unlocked;
    core->close();
    queue->close();
  }
};

// An operation whose dispatches stay together: `enter` gives what they are recorded into. In C++, so that no
// signal comes between the lock and its release.
struct Operation_ {
  std::shared_ptr<Queue> queue;
  nb::callable recording;
  nb::object begin() {
    queue->enter();
    try {
      return recording();
    } catch (...) {
      queue->leave();
      throw;
    }
  }
  void end(nb::args) { queue->leave(); }
};

static nb::ndarray<nb::numpy, uint8_t> view(const Buffer &buffer) {
  const PiecePtr piece = buffer.piece;
  Use use(*piece->memory->core);
  if (!piece->mapped()) throw std::out_of_range("not host memory");
  nb::capsule owner(new PiecePtr(piece), [](void *p) noexcept { delete static_cast<PiecePtr *>(p); });
  return nb::ndarray<nb::numpy, uint8_t>(piece->host(), {piece->bytes}, owner);
}

static nb::object failure(const Buffer &buffer) {
  if (!buffer.piece->failure) return nb::none();
  const Failure f = *buffer.piece->failure;
  return nb::module_::import_("vkq.device.vulkan").attr("error_for")(static_cast<int>(f.result), f.call);
}

static void bindMemory(nb::module_ &m) {
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
          "mapped", [](const Buffer &b) { return b.piece->mapped(); }, "Whether the host sees it.")
      .def_prop_ro("failure", failure, "Why what it should hold was never computed, or None.")
      .def(
          "check",
          [](const Buffer &b) {
            if (b.piece->failure) throw NeverComputed(*b.piece->failure);
          },
          "Raises where the content is not there because the submission that computes it failed.")
      .def("view", view, "The bytes themselves, where the host sees them.");
  nb::class_<Arena>(m, "Arena")
      .def("allocate", [](Arena &a, uint64_t bytes) { return Buffer{a.allocate(bytes)}; })
      .def("trim", &Arena::trim)
      .def("reset_peak", &Arena::resetPeak)
      .def_prop_ro("largest", [](Arena &a) { return a.largest; })
      .def_prop_ro("allocated_bytes", &Arena::allocatedBytes)
      .def_prop_ro("used_bytes", &Arena::usedBytes)
      .def_prop_ro("peak_bytes", &Arena::peakBytes);
}

using StepTuple = std::tuple<nb::object, std::vector<uint16_t>, std::vector<uint8_t>, nb::bytes, int,
                             std::vector<std::tuple<uint32_t, uint32_t, uint32_t>>, uint32_t>;

static std::shared_ptr<Plan> makePlan(const std::vector<StepTuple> &given, size_t slots, size_t inputs,
                                      const std::vector<uint16_t> &outputs,
                                      const std::vector<std::tuple<uint16_t, uint64_t, uint64_t>> &parts,
                                      uint64_t scratchBytes) {
  std::vector<PlanStep> steps;
  for (const auto &[program, numbers, access, push, at, grids, value] : given) {
    PlanStep step;
    if (!program.is_none()) step.program = nb::cast<Program &>(program).shared_from_this();
    step.slots = numbers;
    step.access = access;
    step.push = std::string(push.c_str(), push.size());
    step.firstGroupAt = at;
    for (auto [first, x, gy] : grids) step.grids.push_back({first, x, gy});
    step.value = value;
    steps.push_back(std::move(step));
  }
  std::vector<ScratchSlot> scratch;
  for (auto [slot, offset, bytes] : parts) scratch.push_back({slot, offset, bytes});
  return std::make_shared<Plan>(std::move(steps), slots, inputs, outputs, std::move(scratch), scratchBytes);
}

static PiecePtr pieceOf(nb::handle object) {
  return object.is_none() ? nullptr : nb::cast<const Buffer &>(object).piece;
}

// Buffers from a sequence of Python's, of which the first few need no allocation.
struct Pieces {
  static constexpr Py_ssize_t FEW = 16;
  PiecePtr few[FEW];
  std::vector<PiecePtr> many;
  const PiecePtr *data = few;
  size_t count;

  explicit Pieces(nb::handle buffers) {
    nb::object sequence = nb::steal(PySequence_Fast(buffers.ptr(), "buffers must be a list or tuple"));
    if (!sequence.is_valid()) throw nb::python_error();
    // The macros of PySequence_Fast are not in the stable ABI.
    const bool tuple = PyTuple_Check(sequence.ptr());
    count = tuple ? PyTuple_Size(sequence.ptr()) : PyList_Size(sequence.ptr());
    PiecePtr *into = few;
    if (count > FEW) {
      many.resize(count);
      data = into = many.data();
    }
    const auto item = tuple ? PyTuple_GetItem : PyList_GetItem;
    for (size_t i = 0; i < count; i++) into[i] = pieceOf(item(sequence.ptr(), i));
  }
};

// Calls a member of a recording under its queue's lock.
template <typename F>
static void underLock(Queue &queue, F call) {
  lockPolitely(queue.mutex);
  std::lock_guard<std::recursive_mutex> lock(queue.mutex, std::adopt_lock);
  call();
}

using Bytes = nb::ndarray<uint8_t, nb::c_contig, nb::device::cpu>;
using ReadBytes = nb::ndarray<const uint8_t, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

static Packing makePacking(std::tuple<uint32_t, uint32_t, uint32_t, uint32_t> e,
                           std::tuple<Table, Table, Table, Table> tables, int lane, uint64_t words) {
  auto copied = [](const Table &t) { return std::vector<uint32_t>(t.data(), t.data() + t.size()); };
  auto &[a, b, c, d] = tables;
  return Packing({std::get<0>(e), std::get<1>(e), std::get<2>(e), std::get<3>(e)},
                 {copied(a), copied(b), copied(c), copied(d)}, lane, words);
}

static void checkSizes(const Packing &p, uint64_t bytes, uint64_t words) {
  if (bytes != p.elements() || words < 4 * p.words)
    throw std::invalid_argument("Packing: the array or the buffer has another size than the layout");
}

static void bindPacking(nb::module_ &m) {
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

static void bindRecording(nb::module_ &m) {
  nb::class_<Program>(m, "Program")
      .def_prop_ro(
          "pipeline", [](Program &p) { return reinterpret_cast<uint64_t>(p.pipeline); },
          "The VkPipeline as an integer; 0 once the device is closed.");
  nb::class_<Plan>(m, "Plan")
      .def(nb::new_(&makePlan), nb::arg("steps"), nb::arg("slots"), nb::arg("inputs"), nb::arg("outputs"),
           nb::arg("scratch"), nb::arg("scratch_bytes"),
           "steps: (program or None, slots, access, push, byte of first_group or -1, grids, word of a fill); "
           "scratch: (slot, offset, bytes).")
      .def("bind", [](Plan &p, size_t slot, const Buffer &buffer) { p.bind(slot, buffer.piece); });
  nb::class_<Recording>(m, "Recording")
      .def_prop_ro("position", [](Recording &r) { return r.position(); })
      .def_prop_ro("recorded", [](Recording &r) { return r.recorded; })
      .def_prop_ro("sealed", [](Recording &r) { return r.sealed; })
      .def_prop_ro("broken", [](Recording &r) { return r.broken; })
      .def_prop_ro("running", [](Recording &r) { return r.running.load(); })
      .def("uses", [](Recording &r, const Buffer &b) { return r.uses(b.piece); })
      .def("timestamps", &Recording::timestamps);
  nb::class_<Operation_>(m, "Operation")
      .def("__enter__", &Operation_::begin)
      .def("__exit__", &Operation_::end);
}

static void bindQueue(nb::class_<Queue> c) {
  c.def(
       "add",
       [](Queue &q, Plan &plan, nb::handle inputs, nb::handle outputs) {
         const Pieces in(inputs), out(outputs);
         q.add(nullptr, plan.shared_from_this(), in.data, in.count, out.data, out.count, nullptr);
       },
       "Records a plan into the chain, on its inputs and its results.")
      .def(
          "add_to",
          [](Queue &q, Recording &r, Plan &plan, nb::handle slots, nb::handle scratch) {
            const Pieces given(slots);
            q.add(&r, plan.shared_from_this(), given.data, given.count, nullptr, 0, pieceOf(scratch));
          },
          nb::arg("recording"), nb::arg("plan"), nb::arg("slots"), nb::arg("scratch").none(),
          "Records a plan into a recording, on buffers by slot, None where a constant or scratch memory "
          "lies.")
      .def("copy", [](Queue &q, Recording &r, const Buffer &from, const Buffer &to,
                      uint64_t bytes) { underLock(q, [&] { r.copy(from.piece, 0, to.piece, 0, bytes); }); })
      .def("fill", [](Queue &q, Recording &r, const Buffer &to,
                      uint32_t value) { underLock(q, [&] { r.fill(to.piece, value); }); })
      .def("barrier", [](Queue &q, Recording &r) { underLock(q, [&] { r.barrier(); }); })
      .def("timestamp", [](Queue &q, Recording &r) { underLock(q, [&] { r.timestamp(); }); })
      .def("repeat", [](Queue &q, Recording &r, size_t first,
                        uint32_t times) { underLock(q, [&] { r.repeat(first, times); }); })
      .def(
          "scratch",
          [](Queue &q, uint64_t bytes) {
            Buffer found;
            underLock(q, [&] { found.piece = q.scratchOf(bytes); });
            return found;
          },
          "Memory for what lies between the steps of plans; all share it, ordered by barriers.")
      .def("chain",
           [](Queue &q) {
             std::shared_ptr<Recording> found;
             underLock(q, [&] { found = q.chain(); });
             return found;
           })
      .def("recording",
           [](Queue &q, uint32_t timestamps, uint32_t marks) {
             return std::make_shared<Recording>(q.core, timestamps, marks, true);
           })
      .def("operation",
           [](const std::shared_ptr<Queue> &q, nb::callable recording) { return Operation_{q, recording}; })
      .def("flush", &Queue::flush)
      .def("synchronize", &Queue::synchronize)
      .def("submit", [](Queue &q, Recording &r) { q.submit(r.shared_from_this()); })
      .def("wait", [](Queue &q, Recording &r) { q.wait(r.shared_from_this()); })
      .def("in_flight", &Queue::inFlight)
      .def("trim", &Queue::trim)
      .def("upload", [](Queue &q, const Buffer &target,
                        ReadBytes data) { q.upload(target.piece, data.data(), data.nbytes()); })
      .def(
          "gather",
          [](Queue &q, const Buffer &target, const std::vector<ReadBytes> &arrays) {
            std::vector<Part> parts;
            for (const ReadBytes &one : arrays) parts.push_back({one.data(), one.nbytes()});
            q.gather(target.piece, parts);
          },
          "Arrays one behind the other into memory that the host sees.")
      .def("download", [](Queue &q, const Buffer &source,
                          Bytes data) { q.download(source.piece, data.data(), data.nbytes()); })
      .def(
          "upload_packed",
          [](Queue &q, const Buffer &target, const Packing &p, ReadBytes array, uint8_t flip) {
            checkSizes(p, array.nbytes(), target.piece->bytes);
            q.write(target.piece,
                    [&](uint8_t *to) { p.pack(reinterpret_cast<uint32_t *>(to), array.data(), flip, 0); });
          },
          "For memory that the host sees.")
      .def(
          "download_unpacked",
          [](Queue &q, const Buffer &source, const Packing &p, Bytes array, uint8_t flip) {
            checkSizes(p, array.nbytes(), source.piece->bytes);
            q.read(source.piece, [&](const uint8_t *from) {
              p.unpack(array.data(), reinterpret_cast<const uint32_t *>(from), flip);
            });
          },
          "For memory that the host sees.")
      .def(
          "pin", [](Queue &q, uint64_t bytes) { return Buffer{q.pin(bytes)}; },
          "Host memory that the device copies from and to by itself.")
      .def_rw("operations_per_chain", &Queue::operationsPerChain)
      .def_rw("chains_in_flight", &Queue::chainsInFlight);
}

static void bindContext(nb::module_ &m) {
  bindQueue(nb::class_<Queue>(m, "Queue"));
  nb::class_<Context>(m, "Context")
      .def(
          nb::init<uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint32_t, bool, uint64_t, std::string>())
      .def(
          "arena",
          [](Context &c, uint32_t type, bool mapped, uint64_t alignment, uint64_t block, uint64_t largest,
             uint64_t keep) {
            return std::make_shared<Arena>(c.core, type, mapped, alignment, block, largest, keep);
          },
          nb::arg("type"), nb::arg("mapped"), nb::arg("alignment"), nb::arg("block_bytes"),
          nb::arg("largest"), nb::arg("keep_bytes"))
      .def(
          "set_arenas",
          [](Context &c, Arena &own, uint64_t scratchKeep, Arena &staging, uint64_t limit, uint64_t chunk) {
            c.queue->setScratch(own.shared_from_this(), scratchKeep);
            c.queue->setStaging(staging.shared_from_this(), limit, chunk);
          },
          nb::arg("own"), nb::arg("scratch_keep"), nb::arg("staging"), nb::arg("staging_limit"),
          nb::arg("chunk"))
      .def_prop_ro("queue", [](Context &c) { return c.queue; })
      .def("program",
           [](Context &c, std::string name, nb::bytes spirv, uint32_t bindings, uint32_t push,
              const Constants &constants, uint32_t subgroupSize, uint32_t flags) {
             return std::make_shared<Program>(c.core, std::move(name), spirv, bindings, push, constants,
                                              subgroupSize, flags);
           })
      .def("load_cache", [](Context &c, nb::bytes data) { c.makeCache(data.c_str(), data.size()); })
      .def("cache_data", &Context::cacheData)
      .def("buffer_memory_types", &Context::bufferMemoryTypes)
      .def(
          "check", [](Context &c) { Use use(*c.core); }, "Raises where the device is closed, lost or forked.")
      .def_prop_ro("forked", [](Context &c) { return c.core->forked(); })
      .def_prop_ro("closed", [](Context &c) { return c.core->closed.load(); })
      .def_prop_ro("lost", [](Context &c) { return c.core->lost.load(); })
      .def("close", &Context::close);
}

static void bindProcess(nb::module_ &m) {
  m.def(
      "begin_exit", [] { noteMain(), ending = true; },
      "The process ends: other threads that get an error from here on are parked, because Python code must "
      "not be "
      "run by them any more.");
  m.def(
      "inject",
      [](const std::string &call, uint64_t nth, int result, uint64_t times) {
        inject(call, nth, static_cast<VkResult>(result), times);
      },
      nb::arg("call"), nb::arg("nth") = 0, nb::arg("result") = 0, nb::arg("times") = 1,
      "Make the nth call (1-based; 0: none) of this Vulkan function ('*': any) and the times - 1 calls after "
      "it "
      "fail with this VkResult; '' ends it. For tests.");
  m.def("injected_calls", injectedCalls, "How many calls matched since inject().");
}

}  // namespace vkq

NB_MODULE(_kompute, m) {
  if (!vkq::gilHeld) throw std::runtime_error("this Python has no PyGILState_Check");
  m.attr("bindings_sha256") = VKQ_BINDINGS_SHA256;
  m.attr("kompute_version") = VKQ_KOMPUTE_VERSION;
  nanobind::set_leak_warnings(
      false);  // objects alive at interpreter exit are closed by the device's exit handler
  nanobind::register_exception_translator(vkq::translate, nullptr);
  vkq::bindMemory(m);
  vkq::bindPacking(m);
  vkq::bindRecording(m);
  vkq::bindContext(m);
  vkq::bindProcess(m);
}
