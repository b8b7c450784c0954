// Python's classes for programs, plans, recordings, and the queue to which they are added.
#include "bindings.hpp"

namespace vkq {

// An operation whose dispatches stay together. `begin` takes the lock and returns the recording for them;
// `end` releases the lock. This class is in C++, so that an exception of a signal handler cannot leave the
// lock taken.
struct Operation_ {
  std::shared_ptr<Queue> queue;
  nb::callable recording;
  std::thread::id owner;
  nb::object begin() {
    queue->enter();
    owner = std::this_thread::get_id();
    try {
      return recording();
    } catch (...) {
      end();
      throw;
    }
  }
  void end() {
    if (owner != std::this_thread::get_id())
      throw UsageError("the operation was not begun by this thread, or has ended already");
    owner = {};
    queue->leave();
  }
};

using StepTuple = std::tuple<nb::object, std::vector<uint16_t>, std::vector<uint8_t>, nb::bytes, int,
                             std::vector<std::tuple<uint32_t, uint32_t, uint32_t>>, uint32_t, uint64_t>;

static std::shared_ptr<Plan> makePlan(const std::vector<StepTuple> &given, size_t slots, size_t inputs,
                                      const std::vector<uint16_t> &outputs,
                                      const std::vector<std::tuple<uint16_t, uint64_t, uint64_t>> &parts,
                                      uint64_t scratchBytes) {
  std::vector<PlanStep> steps;
  for (const auto &[program, numbers, access, push, at, grids, value, busyNs] : given) {
    PlanStep step;
    Program *made = nullptr;
    if (!program.is_none()) {
      if (!nb::try_cast(program, made) || !made) throw nb::type_error("a step's program must be a Program");
      step.program = made->shared_from_this();
    }
    step.slots = numbers;
    step.access = access;
    step.push = std::string(push.c_str(), push.size());
    step.firstGroupAt = at;
    for (auto [first, x, gy] : grids) step.grids.push_back({first, x, gy});
    step.value = value;
    step.busyNs = busyNs;
    steps.push_back(std::move(step));
  }
  std::vector<ScratchSlot> scratch;
  for (auto [slot, offset, bytes] : parts) scratch.push_back({slot, offset, bytes});
  return std::make_shared<Plan>(std::move(steps), slots, inputs, outputs, std::move(scratch), scratchBytes);
}

static PiecePtr pieceOf(nb::handle object) {
  const Buffer *found = nullptr;
  if (object.is_none()) return nullptr;
  if (!nb::try_cast(object, found) || !found) throw nb::type_error("buffers must be Buffer objects or None");
  return found->piece;
}

// The buffers of a Python sequence; the first few need no allocation.
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
  const Lock lock = queue.hold();
  call();
}

// Like underLock. Throws unless the recording belongs to the queue.
template <typename F>
static void recordingUnderLock(Queue &queue, const Recording &recording, F call) {
  queue.checkOwn(recording.core.get(), "the recording");
  underLock(queue, call);
}

void bindRecording(nb::module_ &m) {
  nb::class_<Program>(m, "Program")
      .def_prop_ro(
          "pipeline", [](Program &p) { return reinterpret_cast<uint64_t>(p.pipeline); },
          "The VkPipeline as an integer; 0 once the device is closed.");
  nb::class_<Plan>(m, "Plan")
      .def(nb::new_(&makePlan), nb::arg("steps"), nb::arg("slots"), nb::arg("inputs"), nb::arg("outputs"),
           nb::arg("scratch"), nb::arg("scratch_bytes"),
           "steps: (program or None, slots, access, push, byte of first_group or -1, grids, word of a fill, "
           "nanoseconds that it is estimated to take, or 0); "
           "scratch: (slot, offset, bytes).")
      .def("bind", [](Plan &p, size_t slot, const Buffer &buffer) { p.bind(slot, buffer.piece); });
  nb::class_<Recording>(m, "Recording")
      .def_prop_ro("position", [](Recording &r) { return r.position(); })
      .def_prop_ro("submissions", [](Recording &r) { return r.submissions(); })
      .def_prop_ro("recorded", [](Recording &r) { return r.recorded; })
      .def_prop_ro("sealed", [](Recording &r) { return r.sealed; })
      .def_prop_ro("broken", [](Recording &r) { return r.broken; })
      .def_prop_ro("running", [](Recording &r) { return r.running.load(); })
      .def("uses", [](Recording &r, const Buffer &b) { return r.uses(b.piece); })
      .def("timestamps", &Recording::timestamps);
  nb::class_<Operation_>(m, "Operation")
      .def("__enter__", &Operation_::begin)
      .def("__exit__", [](Operation_ &o, nb::args) { o.end(); });
}

void bindQueue(nb::module_ &m) {
  nb::class_<Queue>(m, "Queue")
      .def(
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
      .def("copy",
           [](Queue &q, Recording &r, const Buffer &from, const Buffer &to, uint64_t bytes) {
             recordingUnderLock(q, r, [&] { r.copy(from.piece, 0, to.piece, 0, bytes); });
           })
      .def("fill", [](Queue &q, Recording &r, const Buffer &to,
                      uint32_t value) { recordingUnderLock(q, r, [&] { r.fill(to.piece, value); }); })
      .def("barrier", [](Queue &q, Recording &r) { recordingUnderLock(q, r, [&] { r.barrier(); }); })
      .def("timestamp", [](Queue &q, Recording &r) { recordingUnderLock(q, r, [&] { r.timestamp(); }); })
      .def("repeat", [](Queue &q, Recording &r, size_t first,
                        uint32_t times) { recordingUnderLock(q, r, [&] { r.repeat(first, times); }); })
      .def(
          "scratch",
          [](Queue &q, uint64_t bytes) {
            Buffer found;
            underLock(q, [&] { found.piece = q.scratchOf(bytes); });
            return found;
          },
          "Return memory for intermediate values of plans. All plans share it; barriers order their uses.")
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
      .def(
          "check_between", [](Queue &q) { q.holdBetween(); },
          "Raises inside of this thread's own operation, and in a forked child.")
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
      .def_prop_rw(
          "longest_ns", [](Queue &q) { return q.core->longestNs.load(); },
          [](Queue &q, uint64_t ns) { q.core->longestNs = ns; },
          "Work that is estimated to take longer is several submissions.")
      .def_rw("operations_per_chain", &Queue::operationsPerChain)
      .def_rw("chains_in_flight", &Queue::chainsInFlight);
}

}  // namespace vkq
