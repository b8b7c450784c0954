// What the extension throws; bindings.cpp says which Python exception each becomes.
#pragma once
#include <vulkan/vulkan_core.h>

#include <stdexcept>
#include <string>

namespace vkq {

struct VulkanError : std::exception {
  VkResult result;
  const char *call;
  VulkanError(VkResult r, const char *c) : result(r), call(c) {}
};

// What the caller may not do now; becomes vkq.errors.DeviceError.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace vkq
