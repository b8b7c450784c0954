// The statistics that a driver's compiler reports for a shader (VK_KHR_pipeline_executable_properties).
// Nothing runs.
#pragma once
#include <variant>

#include "instance.hpp"

namespace vkq {

struct Executable {
  std::string name;
  uint32_t subgroupSize;
  std::vector<std::pair<std::string, std::variant<bool, int64_t, uint64_t, double>>> statistics;
  std::vector<std::pair<std::string, std::string>> texts;  // the compiler's internal representations, by name
};

struct Shader {
  std::string spirv;
  std::vector<bool> texels;  // for each binding: true for a uniform texel buffer, false for a storage buffer
  uint32_t pushBytes;
  std::vector<std::pair<uint32_t, uint32_t>> constants;  // specialization constants: id, bits
  uint32_t subgroupSize;  // 0: the driver's choice
};

// Creates the pipeline and reads its statistics; with *capture* also its internal representations. Throws
// VulkanError.
std::vector<Executable> compiled(const Instance &instance, VkDevice device, const Shader &shader,
                                 bool capture);

}  // namespace vkq
