// An open device.
#include "bindings.hpp"
#include "instance.hpp"

namespace vkq {

// Python's object for an open device.
struct Context {
  std::shared_ptr<Core> core = std::make_shared<Core>();
  std::shared_ptr<Queue> queue = std::make_shared<Queue>(core);

  Context(const Instance &instance, uint64_t physical, uint64_t device, uint64_t vkQueue, uint32_t family,
          bool wideBarriers, uint64_t maxBinding, uint64_t maxTexels, std::string name) {
    if (!physical || !device || !vkQueue) throw std::invalid_argument("Context: a handle is 0");
    fillTable(loaderEntry(), instance.handle);
    core->physical = std::make_shared<vk::PhysicalDevice>(reinterpret_cast<VkPhysicalDevice>(physical));
    core->device = std::make_shared<vk::Device>(reinterpret_cast<VkDevice>(device));
    core->queue = std::make_shared<vk::Queue>(reinterpret_cast<VkQueue>(vkQueue));
    core->family = family;
    core->wideBarriers = wideBarriers;
    core->maxBinding = maxBinding;
    core->maxTexels = maxTexels;
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
  // Returns a mask with the bits of the memory types that a storage buffer can use.
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

void bindContext(nb::module_ &m) {
  nb::class_<Context>(m, "Context")
      .def(
          nb::init<const Instance &, uint64_t, uint64_t, uint64_t, uint32_t, bool, uint64_t, uint64_t,
                   std::string>())
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
            c.queue->checkOwn(own.core.get(), "set_arenas: the arena");
            c.queue->checkOwn(staging.core.get(), "set_arenas: the arena");
            c.queue->setScratch(own.shared_from_this(), scratchKeep);
            c.queue->setStaging(staging.shared_from_this(), limit, chunk);
          },
          nb::arg("own"), nb::arg("scratch_keep"), nb::arg("staging"), nb::arg("staging_limit"),
          nb::arg("chunk"))
      .def_prop_ro("queue", [](Context &c) { return c.queue; })
      .def("program",
           [](Context &c, std::string name, nb::bytes spirv, uint32_t bindings, uint32_t push,
              const Constants &constants, uint32_t subgroupSize, uint32_t texels) {
             return std::make_shared<Program>(c.core, std::move(name), spirv, bindings, push, constants,
                                              subgroupSize, texels);
           })
      .def("load_cache", [](Context &c, nb::bytes data) { c.makeCache(data.c_str(), data.size()); })
      .def("cache_data", &Context::cacheData)
      .def("buffer_memory_types", &Context::bufferMemoryTypes)
      .def(
          "check", [](Context &c) { Use use(*c.core); },
          "Raise if the device is closed or lost, or if the process was forked.")
      .def_prop_ro("forked", [](Context &c) { return c.core->forked(); })
      .def_prop_ro("closed", [](Context &c) { return c.core->closed.load(); })
      .def_prop_ro("lost", [](Context &c) { return c.core->lost.load(); })
      .def("close", &Context::close);
}

}  // namespace vkq
