#include "program.hpp"

#include <cstring>

#include "gil.hpp"

namespace vkq {

constexpr uint32_t SPIRV_MAGIC = 0x07230203;
constexpr size_t SPIRV_HEADER = 5, MOST_PUSH_BYTES = 4096;

Program::Program(std::shared_ptr<Core> c, std::string n, nb::bytes spirv, uint32_t bindingCount,
                 uint32_t push, const Constants &constants, uint32_t subgroupSize, uint32_t texelBindings)
    : Resource(std::move(c)),
      name(std::move(n)),
      bindings(bindingCount),
      pushBytes(push),
      texels(texelBindings) {
  if (bindings > MOST_BINDINGS) throw std::invalid_argument("Program: more bindings than can be recorded");
  if (pushBytes % 4 || pushBytes > MOST_PUSH_BYTES)
    throw std::invalid_argument("Program: the push constants are not whole words, or are too many");
  std::vector<uint32_t> code(spirv.size() / 4);
  if (code.size() < SPIRV_HEADER || spirv.size() % 4)
    throw std::invalid_argument("Program: SPIR-V must have whole words, and a header of five words");
  std::memcpy(code.data(), spirv.c_str(), code.size() * 4);
  if (code[0] != SPIRV_MAGIC) throw std::invalid_argument("Program: this is not SPIR-V");
  Unlocked unlocked;
  Use use(*core);
  try {
    create(code, constants, subgroupSize);
  } catch (...) {
    release();
    throw;
  }
  adopt();
}

void Program::create(const std::vector<uint32_t> &code, const Constants &constants,
                     uint32_t subgroupSize) {
  VkDevice d = core->handle();
  VkShaderModuleCreateInfo m{VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO};
  m.codeSize = code.size() * 4;
  m.pCode = code.data();
  vkTable.vkCreateShaderModule(d, &m, nullptr, &module);
  core->check();
  createLayouts();
  createPipeline(constants, subgroupSize);
}

void Program::createLayouts() {
  VkDevice d = core->handle();
  std::vector<VkDescriptorSetLayoutBinding> slots(bindings);
  for (uint32_t i = 0; i < bindings; i++)
    slots[i] = {i, kind(i), 1, VK_SHADER_STAGE_COMPUTE_BIT, nullptr};
  VkDescriptorSetLayoutCreateInfo s{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO};
  s.bindingCount = bindings;
  s.pBindings = slots.data();
  vkTable.vkCreateDescriptorSetLayout(d, &s, nullptr, &setLayout);
  core->check();
  VkPushConstantRange range{VK_SHADER_STAGE_COMPUTE_BIT, 0, pushBytes};
  VkPipelineLayoutCreateInfo l{VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO};
  l.setLayoutCount = 1;
  l.pSetLayouts = &setLayout;
  l.pushConstantRangeCount = pushBytes ? 1 : 0;
  l.pPushConstantRanges = &range;
  vkTable.vkCreatePipelineLayout(d, &l, nullptr, &layout);
  core->check();
}

void Program::createPipeline(const Constants &constants, uint32_t subgroupSize) {
  std::vector<VkSpecializationMapEntry> entries;
  std::vector<uint32_t> values;
  for (auto &[id, value] : constants) {
    entries.push_back({id, static_cast<uint32_t>(values.size() * 4), 4});
    values.push_back(value);
  }
  VkSpecializationInfo specialization{static_cast<uint32_t>(entries.size()), entries.data(),
                                      values.size() * 4, values.data()};
  VkPipelineShaderStageRequiredSubgroupSizeCreateInfo required{
      VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO};
  required.requiredSubgroupSize = subgroupSize;
  VkComputePipelineCreateInfo p{VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
  p.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
  if (subgroupSize) {
    p.stage.pNext = &required;
    p.stage.flags = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT;
  }
  p.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
  p.stage.module = module;
  p.stage.pName = "main";
  p.stage.pSpecializationInfo = &specialization;
  p.layout = layout;
  vkTable.vkCreateComputePipelines(core->handle(), core->cache, 1, &p, nullptr, &pipeline);
  core->check();
}

void Program::release() {
  VkDevice d = core->handle();
  if (pipeline) vkTable.vkDestroyPipeline(d, pipeline, nullptr);
  if (layout) vkTable.vkDestroyPipelineLayout(d, layout, nullptr);
  if (setLayout) vkTable.vkDestroyDescriptorSetLayout(d, setLayout, nullptr);
  if (module) vkTable.vkDestroyShaderModule(d, module, nullptr);
  pipeline = VK_NULL_HANDLE;
  layout = VK_NULL_HANDLE;
  setLayout = VK_NULL_HANDLE;
  module = VK_NULL_HANDLE;
}

}  // namespace vkq
