// What is asked of Vulkan before a device is open: the loader, the VkInstance, and what each physical device
// can do. It needs the headers of Vulkan alone, not Kompute.
#pragma once
#ifndef VK_NO_PROTOTYPES
#define VK_NO_PROTOTYPES 1
#endif
#include <vulkan/vulkan.h>

#include <string>
#include <utility>
#include <vector>

#include "errors.hpp"

namespace vkq {

// Opens the first of these libraries that there is, once for the process. Returns what the linker said where
// there is none, or "".
std::string loadVulkan(const std::vector<std::string> &names);
PFN_vkGetInstanceProcAddr loaderEntry();  // of loadVulkan

// A struct of a pNext chain by its sType: what follows the sType and pNext. Structs newer than the headers at
// hand are asked for in the same way.
struct Chained {
  uint32_t type;
  std::string bytes;
};

// The structs of a chain in memory of their own, and the bytes that Vulkan wrote in them.
class Chain {
  std::vector<std::vector<uint64_t>> structs;  // sType and pNext are the first two words
  std::vector<size_t> sizes;

 public:
  explicit Chain(const std::vector<Chained> &given);
  void *first() { return structs.empty() ? nullptr : structs[0].data(); }
  std::vector<std::string> bytes() const;
};

struct Instance {
  VkInstance handle = VK_NULL_HANDLE;

  // Throws VulkanError. *validation*: VkValidationFeatureEnableEXT to turn on; *severities* of the messages
  // to keep, 0 for none.
  Instance(const std::vector<std::string> &layers, const std::vector<std::string> &extensions, uint32_t flags,
           const std::vector<uint32_t> &validation, uint32_t severities);

  template <typename F>
  F function(const char *name) const {
    F found = reinterpret_cast<F>(loaderEntry()(handle, name));
    if (!found) throw UsageError(std::string("the Vulkan loader has no ") + name);
    return found;
  }
};

uint32_t loaderVersion();
std::vector<std::string> messages();  // what the validation layer has said in this process
void forgetMessages(size_t kept);     // all but the first *kept*

std::vector<VkPhysicalDevice> physicalDevices(const Instance &instance);
std::vector<std::string> deviceExtensions(const Instance &instance, VkPhysicalDevice physical);
VkPhysicalDeviceProperties properties(const Instance &instance, VkPhysicalDevice physical);
std::vector<std::string> moreProperties(const Instance &instance, VkPhysicalDevice physical,
                                        const std::vector<Chained> &structs);
// The bytes of VkPhysicalDeviceFeatures, then those of the structs, which a Vulkan 1.0 device does not take.
std::vector<std::string> features(const Instance &instance, VkPhysicalDevice physical,
                                  const std::vector<Chained> &structs);
std::vector<VkQueueFamilyProperties> queueFamilies(const Instance &instance, VkPhysicalDevice physical);
VkPhysicalDeviceMemoryProperties memory(const Instance &instance, VkPhysicalDevice physical);

// VkCooperativeMatrixPropertiesKHR, which is newer than the headers of Debian 12.
struct MatrixProperties {
  uint32_t type;
  void *next;
  uint32_t m, n, k, a, b, c, result, saturating, scope;
};
std::vector<MatrixProperties> cooperativeMatrices(const Instance &instance, VkPhysicalDevice physical);

// A device with one queue of this family: (device, queue). *core*: the bytes of VkPhysicalDeviceFeatures.
std::pair<VkDevice, VkQueue> createDevice(const Instance &instance, VkPhysicalDevice physical,
                                          uint32_t family, const std::vector<std::string> &extensions,
                                          const std::string &core, const std::vector<Chained> &structs);

}  // namespace vkq
