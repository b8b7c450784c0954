#include "instance.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <mutex>

namespace vkq {

static PFN_vkGetInstanceProcAddr entry = nullptr;

std::string loadVulkan(const std::vector<std::string> &names) {
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  if (entry) return "";
  std::string why;
  for (const std::string &name : names) {
    if (void *library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      entry = reinterpret_cast<PFN_vkGetInstanceProcAddr>(dlsym(library, "vkGetInstanceProcAddr"));
      if (entry) return "";
      why += (why.empty() ? "" : "; ") + name + ": it has no vkGetInstanceProcAddr";
    } else {
      const char *said = dlerror();
      why += (why.empty() ? "" : "; ") + std::string(said ? said : name);
    }
  }
  return why;
}

PFN_vkGetInstanceProcAddr loaderEntry() {
  if (!entry) throw UsageError("libvulkan was not loaded yet");
  return entry;
}

static void check(VkResult result, const char *call) {
  if (result < 0) throw VulkanError(result, call);
}

// ---------------------------------------------------------------------------------------------------- chains

Chain::Chain(const std::vector<Chained> &given) {
  for (const Chained &one : given) {
    structs.emplace_back(2 + (one.bytes.size() + 7) / 8);
    sizes.push_back(one.bytes.size());
    std::memcpy(structs.back().data(), &one.type, sizeof one.type);
    std::memcpy(structs.back().data() + 2, one.bytes.data(), one.bytes.size());
  }
  for (size_t i = 1; i < structs.size(); ++i) {
    const void *next = structs[i].data();
    std::memcpy(structs[i - 1].data() + 1, &next, sizeof next);
  }
}

std::vector<std::string> Chain::bytes() const {
  std::vector<std::string> out;
  for (size_t i = 0; i < structs.size(); ++i)
    out.emplace_back(reinterpret_cast<const char *>(structs[i].data() + 2), sizes[i]);
  return out;
}

// The two-call idiom: get the count, then all elements. *query* takes a count and an array.
template <typename T, typename Query>
static std::vector<T> all(const char *call, const T &empty, Query query) {
  uint32_t count = 0;
  check(query(&count, static_cast<T *>(nullptr)), call);
  std::vector<T> out(count, empty);
  if (count) check(query(&count, out.data()), call);
  out.resize(std::min<size_t>(count, out.size()));
  return out;
}

// ---------------------------------------------------------------------------------------------- the instance

// The validation layer's messages. Never destroyed, because the layer calls `note` until the process ends.
static struct Said {
  std::mutex mutex;
  std::vector<std::string> messages;
} &said = *new Said;

static VkBool32 VKAPI_PTR note(VkDebugUtilsMessageSeverityFlagBitsEXT, VkDebugUtilsMessageTypeFlagsEXT,
                               const VkDebugUtilsMessengerCallbackDataEXT *data, void *) {
  std::lock_guard<std::mutex> lock(said.mutex);
  said.messages.emplace_back(data->pMessage ? data->pMessage : "");
  return VK_FALSE;
}

std::vector<std::string> messages() {
  std::lock_guard<std::mutex> lock(said.mutex);
  return said.messages;
}

void forgetMessages(size_t kept) {
  std::lock_guard<std::mutex> lock(said.mutex);
  if (kept < said.messages.size()) said.messages.resize(kept);
}

static std::vector<const char *> pointers(const std::vector<std::string> &names) {
  std::vector<const char *> out;
  for (const std::string &name : names) out.push_back(name.c_str());
  return out;
}

Instance::Instance(const std::vector<std::string> &layers, const std::vector<std::string> &extensions,
                   uint32_t flags, const std::vector<uint32_t> &validation, uint32_t severities) {
  VkApplicationInfo application{VK_STRUCTURE_TYPE_APPLICATION_INFO};
  application.pApplicationName = application.pEngineName = "vkq";
  application.apiVersion = VK_API_VERSION_1_3;
  VkValidationFeaturesEXT checks{VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT};
  std::vector<VkValidationFeatureEnableEXT> enabled;
  for (uint32_t one : validation) enabled.push_back(static_cast<VkValidationFeatureEnableEXT>(one));
  checks.enabledValidationFeatureCount = static_cast<uint32_t>(enabled.size());
  checks.pEnabledValidationFeatures = enabled.data();
  const auto layerNames = pointers(layers), extensionNames = pointers(extensions);
  VkInstanceCreateInfo info{VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO};
  info.pNext = enabled.empty() ? nullptr : &checks;
  info.flags = flags;
  info.pApplicationInfo = &application;
  info.enabledLayerCount = static_cast<uint32_t>(layerNames.size());
  info.ppEnabledLayerNames = layerNames.data();
  info.enabledExtensionCount = static_cast<uint32_t>(extensionNames.size());
  info.ppEnabledExtensionNames = extensionNames.data();
  check(function<PFN_vkCreateInstance>("vkCreateInstance")(&info, nullptr, &handle), "vkCreateInstance");
  if (!severities) return;
  VkDebugUtilsMessengerCreateInfoEXT wanted{VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT};
  wanted.messageSeverity = severities;
  wanted.messageType =
      VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT;
  wanted.pfnUserCallback = note;
  VkDebugUtilsMessengerEXT messenger = VK_NULL_HANDLE;
  const char *call = "vkCreateDebugUtilsMessengerEXT";
  check(function<PFN_vkCreateDebugUtilsMessengerEXT>(call)(handle, &wanted, nullptr, &messenger), call);
}

uint32_t loaderVersion() {
  uint32_t version = VK_API_VERSION_1_0;  // a Vulkan 1.0 loader lacks the function
  const char *call = "vkEnumerateInstanceVersion";
  const auto ask = reinterpret_cast<PFN_vkEnumerateInstanceVersion>(loaderEntry()(nullptr, call));
  if (ask) check(ask(&version), call);
  return version;
}

// ------------------------------------------------------------------------------------- the physical devices

std::vector<VkPhysicalDevice> physicalDevices(const Instance &instance) {
  const char *call = "vkEnumeratePhysicalDevices";
  const auto ask = instance.function<PFN_vkEnumeratePhysicalDevices>(call);
  return all<VkPhysicalDevice>(call, VK_NULL_HANDLE, [&](uint32_t *count, VkPhysicalDevice *out) {
    return ask(instance.handle, count, out);
  });
}

std::vector<std::string> deviceExtensions(const Instance &instance, VkPhysicalDevice physical) {
  const char *call = "vkEnumerateDeviceExtensionProperties";
  const auto ask = instance.function<PFN_vkEnumerateDeviceExtensionProperties>(call);
  std::vector<std::string> names;
  for (const VkExtensionProperties &one : all<VkExtensionProperties>(
           call, {}, [&](uint32_t *count, VkExtensionProperties *out) {
             return ask(physical, nullptr, count, out);
           }))
    names.emplace_back(one.extensionName);
  return names;
}

VkPhysicalDeviceProperties properties(const Instance &instance, VkPhysicalDevice physical) {
  VkPhysicalDeviceProperties out{};
  instance.function<PFN_vkGetPhysicalDeviceProperties>("vkGetPhysicalDeviceProperties")(physical, &out);
  return out;
}

std::vector<std::string> moreProperties(const Instance &instance, VkPhysicalDevice physical,
                                        const std::vector<Chained> &structs) {
  Chain chain(structs);
  VkPhysicalDeviceProperties2 top{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
  top.pNext = chain.first();
  instance.function<PFN_vkGetPhysicalDeviceProperties2>("vkGetPhysicalDeviceProperties2")(physical, &top);
  return chain.bytes();
}

std::vector<std::string> features(const Instance &instance, VkPhysicalDevice physical,
                                  const std::vector<Chained> &structs) {
  Chain chain(structs);
  VkPhysicalDeviceFeatures2 top{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2};
  top.pNext = chain.first();
  if (structs.empty())
    instance.function<PFN_vkGetPhysicalDeviceFeatures>("vkGetPhysicalDeviceFeatures")(physical,
                                                                                     &top.features);
  else
    instance.function<PFN_vkGetPhysicalDeviceFeatures2>("vkGetPhysicalDeviceFeatures2")(physical, &top);
  std::vector<std::string> out{{reinterpret_cast<const char *>(&top.features), sizeof top.features}};
  for (std::string &one : chain.bytes()) out.push_back(std::move(one));
  return out;
}

std::vector<VkQueueFamilyProperties> queueFamilies(const Instance &instance, VkPhysicalDevice physical) {
  const char *call = "vkGetPhysicalDeviceQueueFamilyProperties";
  const auto ask = instance.function<PFN_vkGetPhysicalDeviceQueueFamilyProperties>(call);
  return all<VkQueueFamilyProperties>(call, {}, [&](uint32_t *count, VkQueueFamilyProperties *out) {
    ask(physical, count, out);
    return VK_SUCCESS;
  });
}

VkPhysicalDeviceMemoryProperties memory(const Instance &instance, VkPhysicalDevice physical) {
  VkPhysicalDeviceMemoryProperties out{};
  instance.function<PFN_vkGetPhysicalDeviceMemoryProperties>("vkGetPhysicalDeviceMemoryProperties")(physical,
                                                                                                    &out);
  return out;
}

std::vector<MatrixProperties> cooperativeMatrices(const Instance &instance, VkPhysicalDevice physical) {
  using Query = VkResult(VKAPI_PTR *)(VkPhysicalDevice, uint32_t *, MatrixProperties *);
  const char *call = "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR";
  const auto ask = reinterpret_cast<Query>(loaderEntry()(instance.handle, call));
  if (!ask) return {};  // an old loader
  const MatrixProperties empty{1000506001};
  return all<MatrixProperties>(call, empty, [&](uint32_t *count, MatrixProperties *out) {
    return ask(physical, count, out);
  });
}

std::pair<VkDevice, VkQueue> createDevice(const Instance &instance, VkPhysicalDevice physical,
                                          uint32_t family, const std::vector<std::string> &extensions,
                                          const std::string &core, const std::vector<Chained> &structs) {
  VkPhysicalDeviceFeatures wanted{};
  if (core.size() != sizeof wanted) throw UsageError("createDevice: the core features have a wrong size");
  std::memcpy(&wanted, core.data(), sizeof wanted);
  Chain chain(structs);
  const float priority = 1;
  VkDeviceQueueCreateInfo queues{VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO};
  queues.queueFamilyIndex = family;
  queues.queueCount = 1;
  queues.pQueuePriorities = &priority;
  const auto names = pointers(extensions);
  VkDeviceCreateInfo info{VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO};
  info.pNext = chain.first();
  info.queueCreateInfoCount = 1;
  info.pQueueCreateInfos = &queues;
  info.enabledExtensionCount = static_cast<uint32_t>(names.size());
  info.ppEnabledExtensionNames = names.data();
  info.pEnabledFeatures = &wanted;
  VkDevice device = VK_NULL_HANDLE;
  check(instance.function<PFN_vkCreateDevice>("vkCreateDevice")(physical, &info, nullptr, &device),
        "vkCreateDevice");
  VkQueue queue = VK_NULL_HANDLE;
  instance.function<PFN_vkGetDeviceQueue>("vkGetDeviceQueue")(device, family, 0, &queue);
  return {device, queue};
}

}  // namespace vkq
