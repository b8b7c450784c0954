// Vulkan before a device is open: the loader, the VkInstance, and the capabilities of physical devices. It
// needs only the Vulkan headers, not Kompute.
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

// Opens the first of these libraries that exists, once for the process. Returns "", or the linker's error if
// none exists.
std::string loadVulkan(const std::vector<std::string> &names);
PFN_vkGetInstanceProcAddr loaderEntry();  // the entry point of the library that loadVulkan opened

// A struct of a pNext chain: its sType, and the bytes after sType and pNext. Structs that are newer than the
// headers can be used in this form.
struct Chained {
  uint32_t type;
  std::string bytes;
};

// A chain of structs in its own memory. `bytes` returns what Vulkan wrote into them.
class Chain {
  std::vector<std::vector<uint64_t>> structs;  // the first two words are sType and pNext
  std::vector<size_t> sizes;

 public:
  explicit Chain(const std::vector<Chained> &given);
  void *first() { return structs.empty() ? nullptr : structs[0].data(); }
  std::vector<std::string> bytes() const;
};

struct Instance {
  VkInstance handle = VK_NULL_HANDLE;

  // Throws VulkanError. *validation*: the VkValidationFeatureEnableEXT to turn on. *severities*: those of the
  // messages to keep; 0: no messages.
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
std::vector<std::string> messages();  // the messages of the validation layer in this process
void forgetMessages(size_t kept);     // removes all messages except the first *kept*

std::vector<VkPhysicalDevice> physicalDevices(const Instance &instance);
std::vector<std::string> deviceExtensions(const Instance &instance, VkPhysicalDevice physical);
VkPhysicalDeviceProperties properties(const Instance &instance, VkPhysicalDevice physical);
std::vector<std::string> moreProperties(const Instance &instance, VkPhysicalDevice physical,
                                        const std::vector<Chained> &structs);
// Returns the bytes of VkPhysicalDeviceFeatures, then those of each struct; a Vulkan 1.0 device ignores the
// structs.
std::vector<std::string> features(const Instance &instance, VkPhysicalDevice physical,
                                  const std::vector<Chained> &structs);
std::vector<VkQueueFamilyProperties> queueFamilies(const Instance &instance, VkPhysicalDevice physical);
VkPhysicalDeviceMemoryProperties memory(const Instance &instance, VkPhysicalDevice physical);

// Has the fields of VkCooperativeMatrixPropertiesKHR, which Debian 12's headers lack.
struct MatrixProperties {
  uint32_t type;
  void *next;
  uint32_t m, n, k, a, b, c, result, saturating, scope;
};
std::vector<MatrixProperties> cooperativeMatrices(const Instance &instance, VkPhysicalDevice physical);

// Opens a device with one queue of this family; returns (device, queue). *core*: the bytes of
// VkPhysicalDeviceFeatures.
std::pair<VkDevice, VkQueue> createDevice(const Instance &instance, VkPhysicalDevice physical,
                                          uint32_t family, const std::vector<std::string> &extensions,
                                          const std::string &core, const std::vector<Chained> &structs);

}  // namespace vkq
