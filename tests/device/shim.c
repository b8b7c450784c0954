/* A fake Vulkan driver that passes calls to lavapipe (the library SHIM_REAL), but fails at one call.
 * SHIM_AT names this call: "load", "negotiate", or a Vulkan function. SHIM_HOW is the failure: crash (a null
 * pointer), hang, exit or abort. The driver reports its device as an integrated GPU, because vkq prefers GPUs
 * to CPU devices. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void (*Function)(void);
typedef Function (*Lookup)(void *, const char *);

static void *driver;
static Lookup real, real_device;
static void (*real_properties)(void *, uint32_t *);

static void load(void) {
  if (driver) return;
  driver = dlopen(getenv("SHIM_REAL"), RTLD_NOW | RTLD_LOCAL);
  if (!driver) abort();
  real = (Lookup)dlsym(driver, "vk_icdGetInstanceProcAddr");
}

static void fail(void) {
  const char *how = getenv("SHIM_HOW");
  if (how && !strcmp(how, "hang"))
    for (;;) pause();
  if (how && !strcmp(how, "exit")) _exit(9);
  if (how && !strcmp(how, "abort")) abort();
  *(volatile int *)0 = 0;
}

static int here(const char *name) {
  const char *at = getenv("SHIM_AT");
  return at && !strcmp(at, name);
}

static Function device_lookup(void *device, const char *name) {
  return here(name) ? fail : real_device(device, name);
}

static void properties(void *device, uint32_t *out) {
  real_properties(device, out);
  out[4] = 1; /* VkPhysicalDeviceProperties.deviceType: VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU */
}

Function vk_icdGetInstanceProcAddr(void *instance, const char *name) {
  load();
  if (here("load")) fail();
  if (here(name)) return fail;
  if (!strcmp(name, "vkGetDeviceProcAddr")) {
    real_device = (Lookup)real(instance, name);
    return real_device ? (Function)device_lookup : NULL;
  }
  if (!strcmp(name, "vkGetPhysicalDeviceProperties")) {
    real_properties = (void (*)(void *, uint32_t *))real(instance, name);
    return (Function)properties;
  }
  return real(instance, name);
}

Function vk_icdGetPhysicalDeviceProcAddr(void *instance, const char *name) {
  load();
  if (here(name)) return fail;
  Lookup lookup = (Lookup)dlsym(driver, "vk_icdGetPhysicalDeviceProcAddr");
  return lookup ? lookup(instance, name) : real(instance, name);
}

int vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *version) {
  load();
  if (here("negotiate")) fail();
  int (*negotiate)(uint32_t *) = (int (*)(uint32_t *))dlsym(driver, "vk_icdNegotiateLoaderICDInterfaceVersion");
  return negotiate ? negotiate(version) : 0;
}
