#include "compiled.hpp"

#include <cstring>
#include <functional>

namespace vkq {

namespace {

// Creates Vulkan objects, and destroys them in reverse order.
class Making {
  const Instance &instance;
  const VkDevice device;
  std::vector<std::function<void()>> made;

 public:
  Making(const Instance &i, VkDevice d) : instance(i), device(d) {}
  Making(const Making &) = delete;
  ~Making() {
    while (!made.empty()) made.back()(), made.pop_back();
  }

  static void check(VkResult result, const char *call) {
    if (result < 0) throw VulkanError(result, call);
  }
  template <typename F, typename... A>
  auto call(const char *name, A... arguments) {
    return instance.function<F>(name)(device, arguments...);
  }
  template <typename Destroy, typename T>
  void keep(const char *destroy, T handle) {
    made.push_back([=, this_ = this] { this_->call<Destroy>(destroy, handle, nullptr); });
  }
  template <typename T, typename Create, typename Destroy, typename Info>
  T make(const char *create, const char *destroy, const Info &info) {
    T handle{};
    check(call<Create>(create, &info, nullptr, &handle), create);
    keep<Destroy>(destroy, handle);
    return handle;
  }
  // The two-call idiom (count, then elements) for queries about *info*.
  template <typename F, typename T, typename Info>
  std::vector<T> all(const char *name, const Info &info, VkStructureType type) {
    uint32_t count = 0;
    check(call<F>(name, &info, &count, nullptr), name);
    T empty{};
    empty.sType = type;
    std::vector<T> out(count, empty);
    check(call<F>(name, &info, &count, out.data()), name);
    return out;
  }
};

#define MAKE(T, info) make<Vk##T, PFN_vkCreate##T, PFN_vkDestroy##T>("vkCreate" #T, "vkDestroy" #T, info)

VkPipelineLayout layoutOf(Making &making, const Shader &shader) {
  std::vector<VkDescriptorSetLayoutBinding> slots;
  for (bool texels : shader.texels) {
    VkDescriptorSetLayoutBinding slot{};
    slot.binding = static_cast<uint32_t>(slots.size());
    slot.descriptorType =
        texels ? VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER : VK_DESCRIPTOR_TYPE_STORAGE_BUFFER;
    slot.descriptorCount = 1;
    slot.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT;
    slots.push_back(slot);
  }
  VkDescriptorSetLayoutCreateInfo sets{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO};
  sets.bindingCount = static_cast<uint32_t>(slots.size());
  sets.pBindings = slots.data();
  const VkDescriptorSetLayout set = making.MAKE(DescriptorSetLayout, sets);
  const VkPushConstantRange push{VK_SHADER_STAGE_COMPUTE_BIT, 0, shader.pushBytes};
  VkPipelineLayoutCreateInfo info{VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO};
  info.setLayoutCount = 1;
  info.pSetLayouts = &set;
  info.pushConstantRangeCount = shader.pushBytes ? 1 : 0;
  info.pPushConstantRanges = &push;
  return making.MAKE(PipelineLayout, info);
}

VkPipeline pipelineOf(Making &making, const Shader &shader, bool capture) {
  std::vector<uint32_t> words(shader.spirv.size() / 4);
  std::memcpy(words.data(), shader.spirv.data(), 4 * words.size());
  VkShaderModuleCreateInfo code{VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO};
  code.codeSize = 4 * words.size();
  code.pCode = words.data();
  VkPipelineShaderStageRequiredSubgroupSizeCreateInfo size{
      VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO};
  size.requiredSubgroupSize = shader.subgroupSize;
  std::vector<VkSpecializationMapEntry> entries;
  for (const auto &constant : shader.constants)
    entries.push_back({constant.first, static_cast<uint32_t>(entries.size() * sizeof constant + 4), 4});
  const VkSpecializationInfo constants{static_cast<uint32_t>(entries.size()), entries.data(),
                                       shader.constants.size() * 8, shader.constants.data()};
  VkComputePipelineCreateInfo info{VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
  if (capture)
    info.flags = VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR |
                 VK_PIPELINE_CREATE_CAPTURE_INTERNAL_REPRESENTATIONS_BIT_KHR;
  info.stage = {VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO};
  if (shader.subgroupSize) {
    info.stage.pNext = &size;
    info.stage.flags = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT;
  }
  info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
  info.stage.module = making.MAKE(ShaderModule, code);
  info.stage.pName = "main";
  info.stage.pSpecializationInfo = &constants;
  info.layout = layoutOf(making, shader);
  VkPipeline pipeline = VK_NULL_HANDLE;
  const char *call = "vkCreateComputePipelines";
  const VkPipelineCache none = VK_NULL_HANDLE;
  Making::check(
      making.call<PFN_vkCreateComputePipelines>(call, none, 1u, &info, nullptr, &pipeline), call);
  making.keep<PFN_vkDestroyPipeline>("vkDestroyPipeline", pipeline);
  return pipeline;
}

std::variant<bool, int64_t, uint64_t, double> value(const VkPipelineExecutableStatisticKHR &s) {
  switch (s.format) {
    case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_BOOL32_KHR: return s.value.b32 != VK_FALSE;
    case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_INT64_KHR: return s.value.i64;
    case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR: return s.value.u64;
    default: return s.value.f64;
  }
}

void addTexts(Making &making, const VkPipelineExecutableInfoKHR &info, Executable &out) {
  using Text = VkPipelineExecutableInternalRepresentationKHR;
  using Query = PFN_vkGetPipelineExecutableInternalRepresentationsKHR;
  const char *call = "vkGetPipelineExecutableInternalRepresentationsKHR";
  std::vector<Text> found = making.all<Query, Text>(
      call, info, VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INTERNAL_REPRESENTATION_KHR);
  std::vector<std::string> texts;
  for (const Text &one : found) texts.emplace_back(one.dataSize, '\0');
  for (size_t i = 0; i < found.size(); ++i) found[i].pData = texts[i].data();
  uint32_t count = static_cast<uint32_t>(found.size());
  Making::check(making.call<Query>(call, &info, &count, found.data()), call);
  for (size_t i = 0; i < found.size(); ++i)
    if (found[i].isText) out.texts.emplace_back(found[i].name, texts[i].c_str());  // up to the first NUL
}

}  // namespace

std::vector<Executable> compiled(const Instance &instance, VkDevice device, const Shader &shader,
                                 bool capture) {
  Making making(instance, device);
  VkPipelineInfoKHR pipeline{VK_STRUCTURE_TYPE_PIPELINE_INFO_KHR};
  pipeline.pipeline = pipelineOf(making, shader, capture);
  std::vector<Executable> out;
  if (!capture) return out;
  using Properties = VkPipelineExecutablePropertiesKHR;
  using Statistic = VkPipelineExecutableStatisticKHR;
  for (const Properties &one : making.all<PFN_vkGetPipelineExecutablePropertiesKHR, Properties>(
           "vkGetPipelineExecutablePropertiesKHR", pipeline,
           VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_PROPERTIES_KHR)) {
    VkPipelineExecutableInfoKHR info{VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR};
    info.pipeline = pipeline.pipeline;
    info.executableIndex = static_cast<uint32_t>(out.size());
    out.push_back({one.name, one.subgroupSize, {}, {}});
    for (const Statistic &s : making.all<PFN_vkGetPipelineExecutableStatisticsKHR, Statistic>(
             "vkGetPipelineExecutableStatisticsKHR", info,
             VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR))
      out.back().statistics.emplace_back(s.name, value(s));
    addTexts(making, info, out.back());
  }
  return out;
}

}  // namespace vkq
