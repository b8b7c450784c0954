// What a driver's compiler made of a shader (VK_KHR_pipeline_executable_properties). Nothing is run.
#pragma once
#include <variant>

#include "instance.hpp"

namespace vkq {

struct Executable {
  std::string name;
  uint32_t subgroupSize;
  std::vector<std::pair<std::string, std::variant<bool, int64_t, uint64_t, double>>> statistics;
  std::vector<std::pair<std::string, std::string>> texts;  // the compiler's forms by name
};

struct Shader {
  std::string spirv;
  std::vector<bool> texels;  // of each binding: a uniform texel buffer, not a storage buffer
  uint32_t pushBytes;
  std::vector<std::pair<uint32_t, uint32_t>> constants;  // specialization constants: id, bits
  uint32_t subgroupSize;  // 0: the driver's choice
};

// Makes the pipeline, and with *capture* asks what it is made of. Throws VulkanError.
std::vector<Executable> compiled(const Instance &instance, VkDevice device, const Shader &shader,
                                 bool capture);

}  // namespace vkq
