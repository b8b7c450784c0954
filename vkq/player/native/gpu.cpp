#include "gpu.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdlib>
#include <cstring>

namespace vkq::player {

static std::atomic<uint32_t> failIn{0};
static std::atomic<int32_t> failWith{0};

uint32_t inject(uint32_t nth, int32_t result) {
  failWith = result;
  return failIn.exchange(nth);
}

bool injected(VkResult *result) {
  uint32_t left = failIn.load();
  while (left && !failIn.compare_exchange_weak(left, left - 1)) {
  }
  if (left == 1) *result = static_cast<VkResult>(failWith.load());
  return left == 1;
}

void check(VkResult result, const char *call) {
  if (result >= 0 && result != VK_TIMEOUT && result != VK_NOT_READY) return;
  const std::string text = std::string(call) + " failed with VkResult " + std::to_string(result);
  if (result == VK_ERROR_DEVICE_LOST)
    throw Error(VKQ_LOST, text + ": the device is lost; unload its models, close it and open it again");
  if (result == VK_ERROR_OUT_OF_HOST_MEMORY || result == VK_ERROR_OUT_OF_DEVICE_MEMORY)
    throw Error(VKQ_MEMORY, text + ": out of memory; unload other models, or export a smaller batch");
  throw Error(VKQ_DEVICE, text);
}

static PFN_vkGetInstanceProcAddr loader() {
  static PFN_vkGetInstanceProcAddr found = [] {
    void *library = nullptr;
    for (const char *name : {"libvulkan.so.1", "libvulkan.so", "libvulkan.1.dylib", "libMoltenVK.dylib"})
      if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    return library ? reinterpret_cast<PFN_vkGetInstanceProcAddr>(dlsym(library, "vkGetInstanceProcAddr"))
                   : nullptr;
  }();
  if (!found) throw Error(VKQ_DEVICE, "the Vulkan loader, libvulkan.so.1, could not be loaded; install it");
  return found;
}

// Features that plans may need: the Vulkan structure with their VkBool32 members, and the extension that
// defined the structure before it became core.
struct Feature {
  VkStructureType type;
  uint32_t core;  // the Vulkan version that made it core; 0: none
  const char *extension;
  std::vector<const char *> names;  // the members in order; "": not needed
};

static const std::vector<Feature> &features() {
  static const std::vector<Feature> all{
      {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES, VK_API_VERSION_1_3,
       "VK_KHR_shader_integer_dot_product", {"shaderIntegerDotProduct"}},
      {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_FEATURES, VK_API_VERSION_1_3, "VK_KHR_maintenance4",
       {"maintenance4"}},
      {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES, VK_API_VERSION_1_3,
       "VK_EXT_subgroup_size_control", {"subgroupSizeControl", "computeFullSubgroups"}},
      {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES, VK_API_VERSION_1_2, "VK_KHR_8bit_storage",
       {"storageBuffer8BitAccess"}},
      {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES, VK_API_VERSION_1_1, nullptr,
       {"storageBuffer16BitAccess"}},
      {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES, VK_API_VERSION_1_2,
       "VK_KHR_shader_float16_int8", {"shaderFloat16", "shaderInt8"}},
      {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES, VK_API_VERSION_1_2,
       "VK_KHR_vulkan_memory_model", {"vulkanMemoryModel", "vulkanMemoryModelDeviceScope"}},
      {static_cast<VkStructureType>(1000506000), 0, "VK_KHR_cooperative_matrix", {"cooperativeMatrix"}}};
  return all;
}

// A feature structure with space for the members of any structure of the table.
struct FeatureStruct {
  VkStructureType type;
  void *next;
  VkBool32 members[8];
};

Gpu::Gpu(const char *which) {
  try {
    openInstance();
    choose(which);
    openDevice();
  } catch (...) {
    close();
    throw;
  }
}

Gpu::~Gpu() { close(); }

void Gpu::close() {
  if (device) {
    if (vkDeviceWaitIdle) vkDeviceWaitIdle(device);
    if (vkDestroyDevice) vkDestroyDevice(device, nullptr);
  }
  if (instance && vkDestroyInstance) vkDestroyInstance(instance, nullptr);
}

void Gpu::openInstance() {
  const auto get = loader();
  const auto create = reinterpret_cast<PFN_vkCreateInstance>(get(nullptr, "vkCreateInstance"));
  VkApplicationInfo app{VK_STRUCTURE_TYPE_APPLICATION_INFO};
  app.pApplicationName = app.pEngineName = "vkq";
  app.apiVersion = VK_API_VERSION_1_3;
  const char *portability = "VK_KHR_portability_enumeration";
  VkInstanceCreateInfo info{VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO};
  info.pApplicationInfo = &app;
  info.flags = 1;  // VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR: else the loader hides MoltenVK
  info.enabledExtensionCount = 1;
  info.ppEnabledExtensionNames = &portability;
  VkResult result;
  if (!injected(&result)) {
    result = create(&info, nullptr, &instance);
    if (result == VK_ERROR_EXTENSION_NOT_PRESENT) {  // an older loader
      info.flags = info.enabledExtensionCount = 0;
      result = create(&info, nullptr, &instance);
    }
  }
  check(result, "vkCreateInstance");
#define VKQ_LOAD(name) name = reinterpret_cast<PFN_##name>(get(instance, #name));
  VKQ_INSTANCE_FUNCTIONS(VKQ_LOAD)
#undef VKQ_LOAD
}

static bool contains(std::string name, std::string part) {
  for (std::string *text : {&name, &part})
    for (char &c : *text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name.find(part) != std::string::npos;
}

void Gpu::choose(const char *which) {
  if (!which || !*which) which = std::getenv("VKQ_DEVICE");
  uint32_t count = 0;
  VKQ_CALL(*this, vkEnumeratePhysicalDevices, instance, &count, nullptr);
  std::vector<VkPhysicalDevice> found(count);
  VKQ_CALL(*this, vkEnumeratePhysicalDevices, instance, &count, found.data());
  static constexpr int RANKS[]{1, 3, 4, 2, 0};  // other, integrated, discrete, virtual, CPU
  int best = -1;
  std::string names;
  char *end = nullptr;
  const unsigned long index = which && *which ? std::strtoul(which, &end, 10) : 0;
  for (uint32_t i = 0; i < count; i++) {
    VkPhysicalDeviceProperties p;
    vkGetPhysicalDeviceProperties(found[i], &p);
    names += "\n  " + std::to_string(i) + ": " + p.deviceName;
    const bool asked = !which || !*which || (end && !*end ? index == i : contains(p.deviceName, which));
    const int rank = p.deviceType <= VK_PHYSICAL_DEVICE_TYPE_CPU ? RANKS[p.deviceType] : 0;
    if (!asked || rank <= best || p.apiVersion < VK_API_VERSION_1_1) continue;
    best = rank;
    physical = found[i];
    properties = p;
  }
  if (!physical)
    throw Error(VKQ_DEVICE,
                count ? "no device of Vulkan 1.1 is named " + std::string(which ? which : "") +
                            "; there are:" + names
                      : "there is no Vulkan device; install a driver, such as mesa-vulkan-drivers");
  vkGetPhysicalDeviceMemoryProperties(physical, &memory);
}

// Enables every feature of the table that the device has, and stores features and limits in `facts`.
void Gpu::openDevice() {
  uint32_t count = 0;
  VKQ_CALL(*this, vkEnumerateDeviceExtensionProperties, physical, nullptr, &count, nullptr);
  std::vector<VkExtensionProperties> offered(count);
  VKQ_CALL(*this, vkEnumerateDeviceExtensionProperties, physical, nullptr, &count, offered.data());
  const auto offers = [&](const char *name) {
    for (const auto &one : offered)
      if (!std::strcmp(one.extensionName, name)) return true;
    return false;
  };
  std::vector<const char *> extensions;
  for (const char *name : {"VK_KHR_shader_float_controls", "VK_KHR_portability_subset"})
    if (offers(name)) extensions.push_back(name);
  const uint32_t version = std::min(properties.apiVersion, uint32_t(VK_API_VERSION_1_3));
  VkPhysicalDeviceFeatures2 asked{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};
  std::vector<FeatureStruct> structs(features().size(), FeatureStruct{});
  void **last = &asked.pNext;
  for (size_t i = 0; i < structs.size(); i++) {
    const Feature &f = features()[i];
    const bool core = f.core && version >= f.core;
    if (!core && (!f.extension || !offers(f.extension))) continue;
    if (!core) extensions.push_back(f.extension);
    structs[i].type = f.type;
    *last = &structs[i];
    last = &structs[i].next;
  }
  vkGetPhysicalDeviceFeatures2(physical, &asked);
  for (size_t i = 0; i < structs.size(); i++)
    for (size_t k = 0; k < features()[i].names.size(); k++)
      if (structs[i].members[k]) facts[features()[i].names[k]] = 1;
  VkPhysicalDeviceFeatures2 wanted{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};
  wanted.pNext = asked.pNext;  // also enables the other supported members of these structures
  wanted.features.shaderInt64 = asked.features.shaderInt64;
  wanted.features.shaderInt16 = asked.features.shaderInt16;
  if (wanted.features.shaderInt64) facts["shaderInt64"] = 1;
  if (wanted.features.shaderInt16) facts["shaderInt16"] = 1;

  vkGetPhysicalDeviceQueueFamilyProperties(physical, &count, nullptr);
  std::vector<VkQueueFamilyProperties> families(count);
  vkGetPhysicalDeviceQueueFamilyProperties(physical, &count, families.data());
  for (family = 0; family < count && !(families[family].queueFlags & VK_QUEUE_COMPUTE_BIT);) family++;
  if (family == count) throw Error(VKQ_DEVICE, "the device has no compute queue");
  const float priority = 1;
  VkDeviceQueueCreateInfo queues{VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO};
  queues.queueFamilyIndex = family;
  queues.queueCount = 1;
  queues.pQueuePriorities = &priority;
  VkDeviceCreateInfo info{VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO};
  info.pNext = &wanted;
  info.queueCreateInfoCount = 1;
  info.pQueueCreateInfos = &queues;
  info.enabledExtensionCount = static_cast<uint32_t>(extensions.size());
  info.ppEnabledExtensionNames = extensions.data();
  VKQ_CALL(*this, vkCreateDevice, physical, &info, nullptr, &device);
#define VKQ_LOAD(name) name = reinterpret_cast<PFN_##name>(vkGetDeviceProcAddr(device, #name));
  VKQ_DEVICE_FUNCTIONS(VKQ_LOAD)
#undef VKQ_LOAD
  vkGetDeviceQueue(device, family, 0, &queue);
  noteLimits(version >= VK_API_VERSION_1_2 || offers("VK_KHR_shader_float_controls"));
}

void Gpu::noteLimits(bool floatControls) {
  const VkPhysicalDeviceLimits &l = properties.limits;
  VkPhysicalDeviceFloatControlsProperties floats{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FLOAT_CONTROLS_PROPERTIES};
  VkPhysicalDeviceSubgroupProperties subgroup{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES};
  if (floatControls) subgroup.pNext = &floats;
  VkPhysicalDeviceProperties2 more{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, &subgroup, {}};
  vkGetPhysicalDeviceProperties2(physical, &more);
  facts["shaderRoundingModeRTEFloat32"] = floats.shaderRoundingModeRTEFloat32;
  facts["shaderDenormPreserveFloat32"] = floats.shaderDenormPreserveFloat32;
  facts["subgroupSize"] = subgroup.subgroupSize;
  facts["vendorID"] = properties.vendorID;
  facts["deviceID"] = properties.deviceID;
  facts["maxComputeWorkGroupInvocations"] = l.maxComputeWorkGroupInvocations;
  facts["maxComputeSharedMemorySize"] = l.maxComputeSharedMemorySize;
  facts["maxPushConstantsSize"] = l.maxPushConstantsSize;
  facts["maxStorageBufferRange"] = l.maxStorageBufferRange;
  facts["maxTexelBufferElements"] = l.maxTexelBufferElements;
  facts["maxPerStageDescriptorStorageBuffers"] = l.maxPerStageDescriptorStorageBuffers;
  const char *axes[]{"_x", "_y", "_z"};
  for (int i = 0; i < 3; i++) {
    facts[std::string("maxComputeWorkGroupSize") + axes[i]] = l.maxComputeWorkGroupSize[i];
    facts[std::string("maxComputeWorkGroupCount") + axes[i]] = l.maxComputeWorkGroupCount[i];
  }
}

}  // namespace vkq::player
