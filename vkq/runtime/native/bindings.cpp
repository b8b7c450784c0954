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

#include "recording.hpp"

namespace vkq {

struct Context {
  std::shared_ptr<Core> core = std::make_shared<Core>();

  Context(uint64_t getInstanceProcAddr, uint64_t instance, uint64_t physical, uint64_t device, uint64_t queue,
          uint32_t family, bool wideBarriers) {
    fillTable(getInstanceProcAddr, instance);
    core->physical = std::make_shared<vk::PhysicalDevice>(reinterpret_cast<VkPhysicalDevice>(physical));
    core->device = std::make_shared<vk::Device>(reinterpret_cast<VkDevice>(device));
    core->queue = std::make_shared<vk::Queue>(reinterpret_cast<VkQueue>(queue));
    core->family = family;
    core->wideBarriers = wideBarriers;
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
};

static void translate(const std::exception_ptr &pointer, void *) {
  try {
    std::rethrow_exception(pointer);
  } catch (const VulkanError &e) {
    nb::object error =
        nb::module_::import_("vkq.device.vulkan").attr("error_for")(static_cast<int>(e.result), e.call);
    PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.ptr())), error.ptr());
  } catch (const UsageError &e) {
    PyErr_SetString(nb::module_::import_("vkq.errors").attr("DeviceError").ptr(), e.what());
  }
}

static nb::ndarray<nb::numpy, uint8_t> view(std::shared_ptr<Memory> memory, uint64_t offset, uint64_t bytes) {
  Use use(*memory->core);
  if (!memory->mapped || offset > memory->bytes || bytes > memory->bytes - offset)
    throw std::out_of_range("not host memory, or a range outside it");
  auto *data = static_cast<uint8_t *>(memory->mapped) + offset;
  using Owner = std::shared_ptr<Memory>;
  nb::capsule owner(new Owner(std::move(memory)), [](void *p) noexcept { delete static_cast<Owner *>(p); });
  return nb::ndarray<nb::numpy, uint8_t>(data, {bytes}, owner);
}

static void bindParts(nb::module_ &m) {
  nb::class_<Memory>(m, "Memory")
      .def_ro("bytes", &Memory::bytes)
      .def_prop_ro("mapped", [](Memory &s) { return s.mapped != nullptr; })
      .def("view", view);
  nb::class_<Program>(m, "Program")
      .def_prop_ro(
          "pipeline", [](Program &p) { return reinterpret_cast<uint64_t>(p.pipeline); },
          "The VkPipeline as an integer; 0 once the device is closed.");
  nb::class_<Recording>(m, "Recording")
      .def("copy", &Recording::copy)
      .def("fill", &Recording::fill)
      .def("barrier", &Recording::barrier)
      .def("dispatch", &Recording::dispatch)
      .def("timestamp", &Recording::timestamp)
      .def("repeat", &Recording::repeat)
      .def_prop_ro("position", [](Recording &r) { return r.operations.size(); })
      .def("submit", &Recording::submit)
      .def("wait", &Recording::wait)
      .def_prop_ro("broken", [](Recording &r) { return r.broken; })
      .def("timestamps", &Recording::timestamps);
}

static void bindContext(nb::module_ &m) {
  nb::class_<Context>(m, "Context")
      .def(nb::init<uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint32_t, bool>())
      .def("allocate", [](Context &c, uint64_t bytes, uint32_t type,
                          bool map) { return std::make_shared<Memory>(c.core, bytes, type, map); })
      .def("program",
           [](Context &c, nb::bytes spirv, uint32_t bindings, uint32_t push, const Constants &constants,
              uint32_t subgroupSize, uint32_t flags) {
             return std::make_shared<Program>(c.core, spirv, bindings, push, constants, subgroupSize, flags);
           })
      .def("recording",
           [](Context &c, uint32_t timestamps) { return std::make_shared<Recording>(c.core, timestamps); })
      .def("load_cache", [](Context &c, nb::bytes data) { c.makeCache(data.c_str(), data.size()); })
      .def("cache_data", &Context::cacheData)
      .def("buffer_memory_types", &Context::bufferMemoryTypes)
      .def_prop_ro("closed", [](Context &c) { return c.core->closed.load(); })
      .def_prop_ro("lost", [](Context &c) { return c.core->lost.load(); })
      .def("close", [](Context &c) {
        nb::gil_scoped_release release;
        c.core->close();
      });
}

static void bindInjection(nb::module_ &m) {
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
  m.attr("kompute_version") = VKQ_KOMPUTE_VERSION;
  nanobind::set_leak_warnings(
      false);  // objects alive at interpreter exit are closed by the device's exit handler
  nanobind::register_exception_translator(vkq::translate, nullptr);
  vkq::bindParts(m);
  vkq::bindContext(m);
  vkq::bindInjection(m);
}
