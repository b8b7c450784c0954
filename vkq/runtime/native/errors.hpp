// Exceptions of the extension; bindings.cpp maps each to a Python exception.
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

// Wrong use, such as a call on a closed device; becomes vkq.errors.DeviceError.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace vkq
