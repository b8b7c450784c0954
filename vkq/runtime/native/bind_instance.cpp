// Python's functions for the loader, the VkInstance and its physical devices; handles are integers. Texts are
// bytes, because drivers may write any bytes.
#include "bind_instance.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "compiled.hpp"
#include "gil.hpp"

namespace vkq {

using Structs = std::vector<std::pair<uint32_t, nb::bytes>>;
using Names = std::vector<std::string>;

static VkPhysicalDevice device(uint64_t handle) {
  if (!handle) throw std::invalid_argument("Instance: a physical device is 0");
  return reinterpret_cast<VkPhysicalDevice>(handle);
}

static nb::bytes bytes(const std::string &text) { return nb::bytes(text.data(), text.size()); }

static nb::list bytesOf(const std::vector<std::string> &texts) {
  nb::list out;
  for (const std::string &text : texts) out.append(bytes(text));
  return out;
}

static std::vector<Chained> chained(const Structs &given) {
  std::vector<Chained> out;
  for (const auto &[type, content] : given) out.push_back({type, {content.c_str(), content.size()}});
  return out;
}

static nb::dict limits(const VkPhysicalDeviceLimits &l) {
  nb::dict out;
#define LIMIT(name) out[#name] = l.name;
#define AXES(name) out[#name] = nb::make_tuple(l.name[0], l.name[1], l.name[2]);
  LIMIT(maxComputeSharedMemorySize)
  LIMIT(maxComputeWorkGroupInvocations)
  AXES(maxComputeWorkGroupCount)
  AXES(maxComputeWorkGroupSize)
  LIMIT(maxStorageBufferRange)
  LIMIT(minStorageBufferOffsetAlignment)
  LIMIT(maxTexelBufferElements)
  LIMIT(minTexelBufferOffsetAlignment)
  LIMIT(maxPushConstantsSize)
  LIMIT(maxPerStageDescriptorStorageBuffers)
  LIMIT(maxMemoryAllocationCount)
  LIMIT(timestampPeriod)
  return out;
}

static nb::dict described(const Instance &instance, uint64_t physical) {
  const VkPhysicalDeviceProperties p = properties(instance, device(physical));
  nb::dict out;
  out["apiVersion"] = p.apiVersion;
  out["driverVersion"] = p.driverVersion;
  out["vendorID"] = p.vendorID;
  out["deviceID"] = p.deviceID;
  out["deviceType"] = static_cast<uint32_t>(p.deviceType);
  out["deviceName"] = nb::bytes(p.deviceName);
  out["pipelineCacheUUID"] = nb::bytes(p.pipelineCacheUUID, VK_UUID_SIZE);
  out["limits"] = limits(p.limits);
  return out;
}

static std::vector<std::pair<uint32_t, uint64_t>> memoryTypes(const Instance &instance, uint64_t physical) {
  const VkPhysicalDeviceMemoryProperties found = memory(instance, device(physical));
  std::vector<std::pair<uint32_t, uint64_t>> out;
  for (uint32_t i = 0; i < found.memoryTypeCount; ++i)
    out.emplace_back(found.memoryTypes[i].propertyFlags,
                     found.memoryHeaps[found.memoryTypes[i].heapIndex].size);
  return out;
}

static nb::list matrices(const Instance &instance, uint64_t physical) {
  nb::list out;
  for (const MatrixProperties &p : cooperativeMatrices(instance, device(physical)))
    out.append(nb::make_tuple(p.m, p.n, p.k, p.a, p.b, p.c, p.result, p.saturating, p.scope));
  return out;
}

static nb::list compile(const Instance &instance, uint64_t handle, nb::bytes spirv, std::vector<bool> texels,
                        uint32_t pushBytes, std::vector<std::pair<uint32_t, uint32_t>> constants,
                        uint32_t subgroupSize, bool capture) {
  if (!handle) throw std::invalid_argument("Instance: a device is 0");
  const Shader shader{{spirv.c_str(), spirv.size()}, std::move(texels), pushBytes, std::move(constants),
                      subgroupSize};
  std::vector<Executable> found;
  {
    Unlocked unlocked;
    found = compiled(instance, reinterpret_cast<VkDevice>(handle), shader, capture);
  }
  nb::list out;
  for (const Executable &one : found) {
    nb::list statistics, texts;
    for (const auto &[name, value] : one.statistics) statistics.append(nb::make_tuple(bytes(name), value));
    for (const auto &[name, text] : one.texts) texts.append(nb::make_tuple(bytes(name), bytes(text)));
    out.append(nb::make_tuple(bytes(one.name), one.subgroupSize, statistics, texts));
  }
  return out;
}

static void bindQueries(nb::class_<Instance> &c) {
  c.def("physical_devices",
        [](const Instance &i) {
          Unlocked unlocked;
          std::vector<uint64_t> out;
          for (VkPhysicalDevice one : physicalDevices(i)) out.push_back(reinterpret_cast<uint64_t>(one));
          return out;
        })
      .def("extensions",
           [](const Instance &i, uint64_t p) { return bytesOf(deviceExtensions(i, device(p))); })
      .def("properties", described)
      .def("more_properties",
           [](const Instance &i, uint64_t p, const Structs &structs) {
             return bytesOf(moreProperties(i, device(p), chained(structs)));
           })
      .def("features",
           [](const Instance &i, uint64_t p, const Structs &structs) {
             return bytesOf(features(i, device(p), chained(structs)));
           })
      .def("queue_families",
           [](const Instance &i, uint64_t p) {
             std::vector<std::pair<uint32_t, uint32_t>> out;
             for (const VkQueueFamilyProperties &one : queueFamilies(i, device(p)))
               out.emplace_back(one.queueFlags, one.timestampValidBits);
             return out;
           })
      .def("memory_types", memoryTypes)
      .def("cooperative_matrices", matrices);
}

void bindInstance(nb::module_ &m) {
  m.def("load_vulkan", loadVulkan, nb::arg("names"),
        "Open the first of these libraries that there is. Returns what the linker said where there is none.");
  m.def("loader_version", loaderVersion, "The Vulkan version that the loader offers, packed.");
  m.def("messages", [] { return bytesOf(messages()); }, "The messages of the validation layer so far.");
  m.def("forget_messages", forgetMessages, nb::arg("kept"), "Forget all but the first ones.");
  nb::class_<Instance> instance(m, "Instance");
  instance
      .def(
          "__init__",
          [](Instance *self, const Names &layers, const Names &extensions, uint32_t flags,
             const std::vector<uint32_t> &validation, uint32_t severities) {
            Unlocked unlocked;
            new (self) Instance(layers, extensions, flags, validation, severities);
          },
          nb::arg("layers"), nb::arg("extensions"), nb::arg("flags"), nb::arg("validation"),
          nb::arg("severities"))
      .def(
          "create_device",
          [](const Instance &i, uint64_t physical, uint32_t family, const Names &extensions, nb::bytes core,
             const Structs &given) {
            const std::string enabled(core.c_str(), core.size());
            const auto structs = chained(given);
            Unlocked unlocked;
            auto [made, queue] = createDevice(i, device(physical), family, extensions, enabled, structs);
            return std::pair(reinterpret_cast<uint64_t>(made), reinterpret_cast<uint64_t>(queue));
          },
          nb::arg("physical"), nb::arg("family"), nb::arg("extensions"), nb::arg("core"), nb::arg("structs"))
      .def("destroy_device",
           [](const Instance &i, uint64_t handle) {
             if (!handle) return;
             Unlocked unlocked;
             i.function<PFN_vkDestroyDevice>("vkDestroyDevice")(reinterpret_cast<VkDevice>(handle), nullptr);
           })
      .def("compile", compile, nb::arg("device"), nb::arg("spirv"), nb::arg("texels"), nb::arg("push_bytes"),
           nb::arg("constants"), nb::arg("subgroup_size"), nb::arg("capture"));
  bindQueries(instance);
}

}  // namespace vkq
