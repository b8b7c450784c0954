// The operations of a recording, as Kompute's operations. Each writes its commands into the command buffer.
#pragma once
#include "memory.hpp"
#include "program.hpp"

namespace vkq {

struct Operation : kp::OpBase {
  uint64_t busyNs = 0;  // estimated time on the device; 0: unknown, or not needed
  void preEval(const vk::CommandBuffer &) override {}
  void postEval(const vk::CommandBuffer &) override {}
};

// Orders all earlier writes before all later accesses. By default, the barrier names exactly the accesses of
// shaders and copies. A `wide` barrier names all accesses, for drivers that drop exact compute-to-compute
// barriers. It also invalidates caches that vkq does not use, which takes 2.6 us on an H200.
struct Barrier : Operation {
  bool wide;
  explicit Barrier(bool w) : wide(w) {}
  void record(const vk::CommandBuffer &commands) override;
};

// Orders all earlier writes before accesses of the host.
struct HostBarrier : Operation {
  void record(const vk::CommandBuffer &commands) override;
};

struct Copy : Operation {
  Range from, to;
  Copy(Range f, Range t) : from(f), to(t) {}
  void record(const vk::CommandBuffer &commands) override;
};

struct Fill : Operation {
  Range to;
  uint32_t value;
  Fill(Range t, uint32_t v) : to(t), value(v) {}
  void record(const vk::CommandBuffer &commands) override;
};

struct ResetQueries : Operation {
  VkQueryPool pool;
  uint32_t count;
  ResetQueries(VkQueryPool p, uint32_t n) : pool(p), count(n) {}
  void record(const vk::CommandBuffer &commands) override;
};

struct Timestamp : Operation {
  VkQueryPool pool;
  uint32_t index;
  Timestamp(VkQueryPool p, uint32_t i) : pool(p), index(i) {}
  void record(const vk::CommandBuffer &commands) override;
};

struct Dispatch : Operation {
  VkPipeline pipeline;
  VkPipelineLayout layout;
  VkDescriptorSet set;
  std::string push;
  uint32_t x, y;
  Dispatch(const Program &p, VkDescriptorSet s, std::string bytes, uint32_t gx, uint32_t gy, uint64_t ns)
      : pipeline(p.pipeline), layout(p.layout), set(s), push(std::move(bytes)), x(gx), y(gy) {
    busyNs = ns;
  }
  void record(const vk::CommandBuffer &commands) override;
};

}  // namespace vkq
