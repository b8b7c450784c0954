// A compute pipeline with its layouts. All dispatches of the same variant and constants share it.
#pragma once
#include <utility>

#include "core.hpp"

namespace vkq {

using Constants = std::vector<std::pair<uint32_t, uint32_t>>;  // specialization constants: id, bits

struct Program : Resource, std::enable_shared_from_this<Program> {
  static constexpr uint32_t MOST_BINDINGS = 16;
  const std::string name;
  VkShaderModule module = VK_NULL_HANDLE;
  VkDescriptorSetLayout setLayout = VK_NULL_HANDLE;
  VkPipelineLayout layout = VK_NULL_HANDLE;
  VkPipeline pipeline = VK_NULL_HANDLE;
  uint32_t bindings, pushBytes;
  uint32_t texels;  // a bit for each binding: set for a uniform texel buffer, else it is a storage buffer

  Program(std::shared_ptr<Core> c, std::string name, nb::bytes spirv, uint32_t bindingCount, uint32_t push,
          const Constants &constants, uint32_t subgroupSize, uint32_t texelBindings);
  bool readsTexels(uint32_t binding) const { return texels >> binding & 1; }
  VkDescriptorType kind(uint32_t binding) const {
    return readsTexels(binding) ? VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER : VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
  }
  ~Program() override { dispose(); }
  void release() override;

 private:
  void create(const std::vector<uint32_t> &code, const Constants &constants, uint32_t subgroupSize);
  void createLayouts();
  void createPipeline(const Constants &constants, uint32_t subgroupSize);
};

}  // namespace vkq
