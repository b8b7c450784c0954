#include "file.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "together.hpp"

namespace vkq::player {

static constexpr char MAGIC[9] = "VKQFILE5";
static constexpr uint64_t HEAD_AT = 40, BLOB_ALIGNMENT = 64, MOST_BYTES = uint64_t(1) << 40;
static constexpr uint32_t MOST_BINDINGS = 16, MOST_PUSH_BYTES = 4096, MOST_RANK = 16;
static constexpr uint64_t PART = uint64_t(1) << 19;  // words that a thread adds to the checksum at a time
static constexpr uint64_t MOST_TIMES = 1032;  // upper bound of the bytes that deflate unpacks from one byte

static constexpr char DIFFERENT[] = "its sets of shapes are of different models, or none";

static Error damaged(const std::string &what) { return Error(VKQ_FILE, "the file is damaged: " + what); }

static uint64_t mixed(uint64_t word, uint64_t place) {
  constexpr uint64_t GOLDEN = 0x9E3779B97F4A7C15u, MIXER = 0xD6E8FEB86659FD93u;
  uint64_t x = word + place * GOLDEN;
  x = (x ^ (x >> 32)) * MIXER;
  x = (x ^ (x >> 32)) * MIXER;
  return x ^ (x >> 32);
}

uint64_t checksum(const uint8_t *data, uint64_t bytes) {
  const uint64_t words = bytes / 8;
  std::vector<uint64_t> sums(words / PART + 1, 0);
  Together parts(sums.size(), [&](size_t part) {
    uint64_t sum = 0;
    for (uint64_t i = part * PART; i < std::min(words, (part + 1) * PART); i++) {
      uint64_t word;
      std::memcpy(&word, data + 8 * i, 8);
      sum += mixed(word, i + 1);
    }
    sums[part] = sum;
  });
  parts.finish();
  return std::accumulate(sums.begin(), sums.end(), uint64_t(0));
}

// Reads numbers and texts in order.
struct Cursor {
  const uint8_t *at, *end;

  template <typename T>
  T number() {
    if (uint64_t(end - at) < sizeof(T)) throw damaged("its head ends early");
    T value;
    std::memcpy(&value, at, sizeof(T));
    at += sizeof(T);
    return value;
  }
  uint32_t u32() { return number<uint32_t>(); }
  uint64_t u64() { return number<uint64_t>(); }
  // Reads a count of items that take at least `least` bytes each.
  uint32_t count(uint64_t least) {
    const uint32_t n = u32();
    if (n > uint64_t(end - at) / least) throw damaged("a count in its head is too large");
    return n;
  }
  std::string text() {
    const uint32_t n = count(1);
    std::string found(reinterpret_cast<const char *>(at), n);
    at += n;
    return found;
  }
};

struct Reader {
  Cursor head;
  std::vector<Blob> blobs;

  Blob blob() {
    const uint32_t i = head.u32();
    if (i >= blobs.size()) throw damaged("a blob's number is too large");
    return blobs[i];
  }
  void readBlobs(const uint8_t *data, uint64_t bytes, uint64_t after) {
    blobs.resize(head.count(28));
    for (Blob &one : blobs) {
      const uint64_t at = head.u64();
      one.stored = head.u64();
      one.bytes = head.u64();
      one.packing = static_cast<Packing>(head.u32());
      if (at % BLOB_ALIGNMENT || at < after || at > bytes || one.stored > bytes - at)
        throw damaged("a blob lies outside of it, or on another");
      after = at + one.stored;
      const bool plain = one.packing == AS_IT_IS;
      if (one.packing > IN_COLUMNS || (plain ? one.bytes != one.stored : one.bytes > one.stored * MOST_TIMES))
        throw damaged("a blob cannot have its recorded size");
      one.data = data + at;
    }
  }
  Blob answer(const Array &of) {
    const Blob found = blob();
    if (found.bytes != of.bytes) throw damaged("the known answer has another size than its array");
    return found;
  }
  Array array(bool input) {
    static constexpr uint64_t SIZES[]{0, 1, 1, 4, 4, 2};
    Array a;
    a.name = head.text();
    const uint32_t type = head.u32();
    if (type < VKQ_INT8 || type > VKQ_FLOAT16) throw damaged("an array's type is unknown");
    a.type = static_cast<vkq_type>(type);
    a.shape.resize(head.count(8));
    if (a.shape.size() > MOST_RANK) throw damaged("an array has too many axes");
    a.bytes = SIZES[type];
    for (uint64_t &size : a.shape) {
      size = head.u64();
      if (size > MOST_BYTES || (size && a.bytes > MOST_BYTES / size)) throw damaged("an array is too large");
      a.bytes *= size;
    }
    a.stored = a.bytes ? (a.bytes + 3) / 4 * 4 : 4;
    a.low = head.number<int64_t>();
    a.high = head.number<int64_t>();
    if (input) a.answer = answer(a);
    return a;
  }
  Program program() {
    Program p;
    p.name = head.text();
    p.spirv = blob();
    p.bindings = head.u32();
    p.texels = head.u32();
    p.pushBytes = head.u32();
    p.subgroupSize = head.u32();
    p.constants.resize(head.count(8));
    for (auto &[id, bits] : p.constants) {
      id = head.u32();
      bits = head.u32();
    }
    if (p.bindings > MOST_BINDINGS || p.pushBytes % 4 || p.pushBytes > MOST_PUSH_BYTES)
      throw damaged("the shader " + p.name + " is malformed");
    return p;
  }
  Step step(const Plan &plan) {
    Step s;
    s.program = int64_t(head.u32()) - 1;
    if (s.program >= int64_t(plan.programs.size())) throw damaged("a step's program is missing");
    s.slots.resize(head.count(5));
    for (uint32_t &slot : s.slots) {
      slot = head.u32();
      s.access.push_back(head.number<uint8_t>());
      if (slot >= plan.slots) throw damaged("a step's slot is missing");
    }
    s.push = head.text();
    s.firstGroupAt = head.number<int32_t>();
    s.grids.resize(head.count(12));
    for (auto &grid : s.grids)
      for (uint32_t &n : grid) n = head.u32();
    s.value = head.u32();
    s.busyNs = head.u64();
    const uint32_t bindings = s.program < 0 ? 1 : plan.programs[s.program].bindings;
    const uint32_t push = s.program < 0 ? 0 : plan.programs[s.program].pushBytes;
    if (s.slots.size() != bindings || s.push.size() != push || s.firstGroupAt < -1 ||
        (s.firstGroupAt >= 0 && (uint64_t(s.firstGroupAt) + 4 > push)))
      throw damaged("a step does not fit its program");
    return s;
  }
  void readMemory(Plan &p) {
    p.scratchBytes = head.u64();
    if (p.scratchBytes > MOST_BYTES) throw damaged("its scratch memory is too large");
    p.scratch.resize(head.count(20));
    for (Part &one : p.scratch) {
      one.slot = head.u32();
      one.offset = head.u64();
      one.bytes = head.u64();
      if (one.slot >= p.slots || one.offset % p.alignment || one.bytes > p.scratchBytes ||
          one.offset > p.scratchBytes - one.bytes || one.bytes % 4)
        throw damaged("a part of its scratch memory lies outside of it");
    }
    p.constants.resize(head.count(12));
    for (Constant &one : p.constants) {
      one.slot = head.u32();
      one.blob = blob();
      if (one.slot >= p.slots || !one.blob.bytes || one.blob.bytes % 4)
        throw damaged("a constant is not whole words");
      readOrder(one);
    }
  }
  void readOrder(Constant &one) {
    one.sizes.resize(head.count(8));
    one.strides.resize(one.sizes.size());
    if (one.sizes.empty()) return;
    uint64_t words = 1, last = 0;
    for (uint32_t &size : one.sizes) size = head.u32();
    for (uint32_t &stride : one.strides) stride = head.u32();
    const uint64_t most = one.blob.bytes / 4;
    for (size_t i = 0; i < one.sizes.size(); i++) {
      const uint64_t size = one.sizes[i], stride = one.strides[i];
      if (one.sizes.size() > MOST_AXES || !size || words > most / size || stride > most / size) words = 0;
      words *= size;
      last += words ? (size - 1) * stride : 0;
    }
    if (words != most || last >= most) throw damaged("a constant's order reads beyond its blob");
  }
  Plan plan(const Shapes &of) {
    Plan p;
    p.kind = head.text();
    p.about = head.text();
    p.needs.resize(head.count(12));
    for (Need &one : p.needs) {
      one.name = head.text();
      one.value = head.u64();
    }
    const uint32_t programs = head.count(28);
    for (uint32_t i = 0; i < programs; i++) p.programs.push_back(program());
    p.slots = head.u32();
    p.alignment = head.u64();
    if (p.slots < of.inputs.size() || p.slots > (1u << 24) || p.alignment % 4 || !p.alignment ||
        p.alignment > 4096)
      throw damaged("a plan has an invalid number of slots, or an invalid alignment");
    for (const Array &one : of.outputs) {
      Result r{int64_t(head.u32()) - 1, {}};
      if (r.slot < 0) r.constant = blob();
      if (r.slot >= p.slots || (r.slot < 0 && (r.constant.bytes != one.bytes || r.constant.packing)))
        throw damaged("a plan has an invalid result");
      p.results.push_back(r);
    }
    for (const Array &one : of.outputs) p.answers.push_back(answer(one));
    readMemory(p);
    const uint32_t steps = head.count(32);
    for (uint32_t i = 0; i < steps; i++) p.steps.push_back(step(p));
    checkFilled(p, of);
    return p;
  }
  Shapes shapes() {
    Shapes of;
    const uint32_t inputs = head.count(36);
    for (uint32_t i = 0; i < inputs; i++) of.inputs.push_back(array(true));
    const uint32_t outputs = head.count(32);
    for (uint32_t i = 0; i < outputs; i++) of.outputs.push_back(array(false));
    const uint32_t plans = head.count(40);
    for (uint32_t i = 0; i < plans; i++) of.plans.push_back(plan(of));
    if (of.plans.empty()) throw damaged("it has no plan");
    return of;
  }
  // Every slot that a step uses must lie in exactly one place.
  static void checkFilled(const Plan &p, const Shapes &of) {
    std::vector<uint8_t> filled(p.slots, 0);
    for (size_t i = 0; i < of.inputs.size(); i++) filled[i]++;
    for (const Result &one : p.results)
      if (one.slot >= int64_t(of.inputs.size())) filled[one.slot] = 1;  // two results may share a slot
    for (const Part &one : p.scratch) filled[one.slot]++;
    for (const auto &one : p.constants) filled[one.slot]++;
    for (const Step &one : p.steps)
      for (uint32_t slot : one.slots)
        if (filled[slot] != 1) throw damaged("a slot has no place, or several");
    for (size_t i = 0; i < p.results.size(); i++)
      if (p.results[i].slot >= 0 && p.results[i].slot < int64_t(of.inputs.size()) &&
          of.inputs[p.results[i].slot].stored < of.outputs[i].stored)
        throw damaged("a result is larger than the input that it returns");
    for (size_t i = 0; i < p.results.size(); i++)
      for (size_t k = 0; k < i; k++)
        if (p.results[i].slot >= 0 && p.results[i].slot == p.results[k].slot &&
            of.outputs[i].stored != of.outputs[k].stored)
          throw damaged("two results in one slot have different sizes");
  }
};

static bool alike(const std::vector<Array> &a, const std::vector<Array> &b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Array &x, const Array &y) {
    return x.name == y.name && x.type == y.type && x.shape.size() == y.shape.size();
  });
}

File read(const uint8_t *data, uint64_t bytes) {
  if (bytes < HEAD_AT || std::memcmp(data, MAGIC, 8))
    throw Error(VKQ_FILE, bytes >= HEAD_AT && !std::memcmp(data, MAGIC, 7)
                              ? "the file was written by another version of vkq: export the model again"
                              : "this is not a file of vkq export (VKQFILE5)");
  uint64_t head, size, sum, reserved;
  std::memcpy(&head, data + 8, 8);
  std::memcpy(&size, data + 16, 8);
  std::memcpy(&sum, data + 24, 8);
  std::memcpy(&reserved, data + 32, 8);
  if (size != bytes || bytes % 8 || head > bytes - HEAD_AT || reserved)
    throw damaged("it has " + std::to_string(bytes) + " bytes, but its head says " + std::to_string(size));
  if (checksum(data + HEAD_AT, bytes - HEAD_AT) != sum) throw damaged("its checksum differs");
  Reader reader{{data + HEAD_AT, data + HEAD_AT + head}, {}};
  File file;
  file.producer = reader.head.text();
  reader.readBlobs(data, bytes, HEAD_AT + head);
  const uint32_t sets = reader.head.count(12);
  for (uint32_t i = 0; i < sets; i++) {
    file.sets.push_back(reader.shapes());
    const Shapes &one = file.sets[i], &first = file.sets[0];
    if (!alike(one.inputs, first.inputs) || !alike(one.outputs, first.outputs))
      throw damaged(DIFFERENT);
  }
  if (!sets) throw damaged(DIFFERENT);
  return file;
}

}  // namespace vkq::player
