// Emulates the render node of a GPU, for programs that only compile shaders. Preload this library: it makes a plain
// file look like /dev/dri/renderD128, and answers the calls of Mesa's drivers in place of a kernel driver. Mesa then
// offers a Vulkan device and compiles for it. Device memory is the file; submitted work is dropped.
//
//   RENDER_NODE=msm:CHIP    Adreno (turnip): the chip id in hexadecimal, such as 06040000 (640) or 43050a01 (740)
//   RENDER_NODE=v3d:VERSION VideoCore (v3dv): 42 (Raspberry Pi 4) or 71 (Raspberry Pi 5)
//   RENDER_NODE=panfrost:ID Mali (panvk): the product id in hexadecimal, such as 7212 (G52)
//   RENDER_NODE=panthor:ID  Mali (panvk) whose firmware schedules commands: the product id, such as a867 (G610)
//
// The interfaces are those of the kernel's headers include/uapi/drm/{drm,msm_drm,v3d_drm,panfrost_drm,panthor_drm}.h.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <drm/drm.h>
#include <drm/msm_drm.h>
#include <drm/panfrost_drm.h>
#include <drm/panthor_drm.h>
#include <drm/v3d_drm.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define FOLDER "/dev/dri/"
enum { DRM_MAJOR = 226, RENDER_MINOR = 128, PAGE = 4096, BUFFERS = 1 << 16 };
static const uint64_t GPU_ADDRESSES = 1ull << 32;  // the first address of buffers, and the number of addresses

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static const char *node(void) {
  const char *set = getenv("RENDER_NODE");
  return set ? set : "";
}

static uint64_t number(int base) {  // Return the number after the colon of RENDER_NODE.
  const char *colon = strchr(node(), ':');
  return colon ? strtoull(colon + 1, NULL, base) : 0;
}

// ------------------------------------------------------------- files that look like devices

static int minor_of(const char *path) {  // Return a file's minor number in /dev/dri, or -1.
  if (strncmp(path, FOLDER, strlen(FOLDER))) return -1;
  const char *name = path + strlen(FOLDER);
  return !strncmp(name, "renderD", 7) ? atoi(name + 7) : !strncmp(name, "card", 4) ? atoi(name + 4) : -1;
}

static int as_device(struct stat *s, int minor) {
  s->st_mode = S_IFCHR | 0666;
  s->st_rdev = makedev(DRM_MAJOR, minor);
  return 0;
}

int stat(const char *path, struct stat *s) {
  int failed = REAL(stat)(path, s), minor = minor_of(path);
  return failed || minor < 0 ? failed : as_device(s, minor);
}

// Programs built with 64-bit file offsets call stat64, which equals stat on a 64-bit machine.
int stat64(const char *path, struct stat64 *s) { return stat(path, (struct stat *)s); }

static int is_render_node(int fd) {
  struct stat of_fd, of_node;
  return !REAL(fstat)(fd, &of_fd) && !REAL(stat)(FOLDER "renderD128", &of_node) && of_fd.st_ino == of_node.st_ino &&
         of_fd.st_dev == of_node.st_dev;
}

int fstat(int fd, struct stat *s) {
  int failed = REAL(fstat)(fd, s);
  return failed || !is_render_node(fd) ? failed : as_device(s, RENDER_MINOR);
}

int fstat64(int fd, struct stat64 *s) { return fstat(fd, (struct stat *)s); }

// ------------------------------------------------------------- buffers: ranges of the file

static uint64_t next_offset = 1 << 20, offsets[BUFFERS];
static uint32_t next_handle = 1, next_id = 1;

static uint32_t new_buffer(uint64_t size) {
  offsets[next_handle % BUFFERS] = next_offset;
  next_offset += (size + PAGE - 1) / PAGE * PAGE;
  return next_handle++;
}

static int unknown(void) {
  errno = EINVAL;
  return -1;
}

// ------------------------------------------------------------- Adreno

static int msm_parameter(struct drm_msm_param *q) {
  uint64_t chip = number(16);  // bytes: generation, family, member, patch; newer chips use other numbers
  switch (q->param) {
  case MSM_PARAM_GPU_ID: q->value = chip >> 24 < 8 ? (chip >> 24) * 100 + (chip >> 16 & 255) * 10 + (chip >> 8 & 255) : 0; return 0;
  case MSM_PARAM_CHIP_ID: q->value = chip; return 0;
  case MSM_PARAM_GMEM_SIZE: q->value = 1 << 20; return 0;
  case MSM_PARAM_GMEM_BASE: q->value = 1 << 20; return 0;
  case MSM_PARAM_MAX_FREQ: q->value = 600000000; return 0;
  case MSM_PARAM_PRIORITIES: q->value = 3; return 0;
  case MSM_PARAM_VA_START:
  case MSM_PARAM_VA_SIZE: q->value = GPU_ADDRESSES; return 0;
  case MSM_PARAM_TIMESTAMP:
  case MSM_PARAM_FAULTS:
  case MSM_PARAM_SUSPENDS: q->value = 0; return 0;
  default: return unknown();
  }
}

static int msm(unsigned command, void *argument) {
  switch (command) {
  case DRM_MSM_GET_PARAM: return msm_parameter(argument);
  case DRM_MSM_GEM_NEW: {
    struct drm_msm_gem_new *q = argument;
    q->handle = new_buffer(q->size);
    return 0;
  }
  case DRM_MSM_GEM_INFO: {
    struct drm_msm_gem_info *q = argument;
    uint64_t offset = offsets[q->handle % BUFFERS];
    if (q->info == MSM_INFO_GET_OFFSET) q->value = offset;
    if (q->info == MSM_INFO_GET_IOVA) q->value = GPU_ADDRESSES + offset;
    return 0;
  }
  case DRM_MSM_SUBMITQUEUE_NEW: ((struct drm_msm_submitqueue *)argument)->id = next_id++; return 0;
  case DRM_MSM_GEM_SUBMIT: ((struct drm_msm_gem_submit *)argument)->fence = next_id++; return 0;
  default: return 0;
  }
}

// ------------------------------------------------------------- VideoCore: the identity registers of the chips

static int v3d_parameter(struct drm_v3d_get_param *q) {
  int version = (int)number(10);
  switch (q->param) {
  case DRM_V3D_PARAM_V3D_UIFCFG: q->value = 0x45; return 0;
  case DRM_V3D_PARAM_V3D_HUB_IDENT1: q->value = version == 71 ? 0x000e1107 : 0x000e1124; return 0;
  case DRM_V3D_PARAM_V3D_HUB_IDENT2: q->value = 0x100; return 0;
  case DRM_V3D_PARAM_V3D_HUB_IDENT3: q->value = 0xe00; return 0;
  case DRM_V3D_PARAM_V3D_CORE0_IDENT0: q->value = version == 71 ? 0x07443356 : 0x04443356; return 0;
  case DRM_V3D_PARAM_V3D_CORE0_IDENT1: q->value = version == 71 ? 0x81001421 : 0x81001422; return 0;
  case DRM_V3D_PARAM_V3D_CORE0_IDENT2: q->value = 0x40078121; return 0;
  case DRM_V3D_PARAM_MAX_PERF_COUNTERS:
  case DRM_V3D_PARAM_SUPPORTS_SUPER_PAGES: q->value = 0; return 0;
  default: q->value = 1; return 0;  // all other parameters ask whether the kernel supports a feature
  }
}

static int v3d(unsigned command, void *argument) {
  switch (command) {
  case DRM_V3D_GET_PARAM: return v3d_parameter(argument);
  case DRM_V3D_CREATE_BO: {
    struct drm_v3d_create_bo *q = argument;
    q->handle = new_buffer(q->size);
    q->offset = (uint32_t)offsets[q->handle % BUFFERS];
    return 0;
  }
  case DRM_V3D_MMAP_BO: {
    struct drm_v3d_mmap_bo *q = argument;
    q->offset = offsets[q->handle % BUFFERS];
    return 0;
  }
  case DRM_V3D_GET_BO_OFFSET: {
    struct drm_v3d_get_bo_offset *q = argument;
    q->offset = (uint32_t)offsets[q->handle % BUFFERS];
    return 0;
  }
  default: return 0;
  }
}

// ------------------------------------------------------------- Mali: the feature registers of a GPU with four cores

static int panfrost_parameter(struct drm_panfrost_get_param *q) {
  switch (q->param) {
  case DRM_PANFROST_PARAM_GPU_PROD_ID: q->value = number(16); return 0;
  case DRM_PANFROST_PARAM_SHADER_PRESENT: q->value = 0xf; return 0;
  case DRM_PANFROST_PARAM_TILER_FEATURES: q->value = 0x809; return 0;
  case DRM_PANFROST_PARAM_TEXTURE_FEATURES0:
  case DRM_PANFROST_PARAM_TEXTURE_FEATURES1:
  case DRM_PANFROST_PARAM_TEXTURE_FEATURES2:
  case DRM_PANFROST_PARAM_TEXTURE_FEATURES3: q->value = 0xffffffff; return 0;
  case DRM_PANFROST_PARAM_MMU_FEATURES: q->value = 0x280030; return 0;
  case DRM_PANFROST_PARAM_MAX_THREADS:
  case DRM_PANFROST_PARAM_THREAD_MAX_WORKGROUP_SZ: q->value = 256; return 0;
  default: q->value = 0; return 0;
  }
}

static int panfrost(unsigned command, void *argument) {
  switch (command) {
  case DRM_PANFROST_GET_PARAM: return panfrost_parameter(argument);
  case DRM_PANFROST_CREATE_BO: {
    struct drm_panfrost_create_bo *q = argument;
    q->handle = new_buffer(q->size);
    q->offset = offsets[q->handle % BUFFERS];
    return 0;
  }
  case DRM_PANFROST_MMAP_BO: {
    struct drm_panfrost_mmap_bo *q = argument;
    q->offset = offsets[q->handle % BUFFERS];
    return 0;
  }
  case DRM_PANFROST_MADVISE: ((struct drm_panfrost_madvise *)argument)->retained = 1; return 0;
  default: return 0;
  }
}

// ------------------------------------------------------------- Mali with firmware: the RK3588's GPU with four cores

static void answer_struct(struct drm_panthor_dev_query *q, const void *from, uint32_t size) {
  if (q->pointer) memcpy((void *)(uintptr_t)q->pointer, from, q->size < size ? q->size : size);
  q->size = q->pointer ? q->size : size;
}

static int panthor_query(struct drm_panthor_dev_query *q) {
  switch (q->type) {
  case DRM_PANTHOR_DEV_QUERY_GPU_INFO: {
    struct drm_panthor_gpu_info gpu = {
        .gpu_id = (uint32_t)number(16) << 16, .l2_features = 0x7120306, .tiler_features = 0x809, .mem_features = 0x301,
        .mmu_features = 0x2830, .thread_features = 0x4010000, .max_threads = 2048, .thread_max_workgroup_size = 1024,
        .thread_max_barrier_size = 1024, .texture_features = {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
        .as_present = 0xff, .selected_coherency = DRM_PANTHOR_GPU_COHERENCY_NONE, .shader_present = 0x50005,
        .l2_present = 1, .tiler_present = 1};
    answer_struct(q, &gpu, sizeof gpu);
    return 0;
  }
  case DRM_PANTHOR_DEV_QUERY_CSIF_INFO: {
    struct drm_panthor_csif_info firmware = {.csg_slot_count = 8, .cs_slot_count = 8, .cs_reg_count = 96,
                                             .scoreboard_slot_count = 8, .unpreserved_cs_reg_count = 4};
    answer_struct(q, &firmware, sizeof firmware);
    return 0;
  }
  case DRM_PANTHOR_DEV_QUERY_TIMESTAMP_INFO: {
    struct drm_panthor_timestamp_info clock = {.timestamp_frequency = 24000000};
    answer_struct(q, &clock, sizeof clock);
    return 0;
  }
  default: return unknown();
  }
}

static int panthor(unsigned command, void *argument) {
  switch (command) {
  case DRM_PANTHOR_DEV_QUERY: return panthor_query(argument);
  case DRM_PANTHOR_VM_CREATE: ((struct drm_panthor_vm_create *)argument)->id = next_id++; return 0;
  case DRM_PANTHOR_BO_CREATE: {
    struct drm_panthor_bo_create *q = argument;
    q->handle = new_buffer(q->size);
    return 0;
  }
  case DRM_PANTHOR_BO_MMAP_OFFSET: {
    struct drm_panthor_bo_mmap_offset *q = argument;
    q->offset = offsets[q->handle % BUFFERS];
    return 0;
  }
  case DRM_PANTHOR_GROUP_CREATE: ((struct drm_panthor_group_create *)argument)->group_handle = next_id++; return 0;
  case DRM_PANTHOR_TILER_HEAP_CREATE: {
    struct drm_panthor_tiler_heap_create *q = argument;
    q->handle = next_id++;
    q->tiler_heap_ctx_gpu_va = q->first_heap_chunk_gpu_va = GPU_ADDRESSES;
    return 0;
  }
  default: return 0;
  }
}

// User space may map a register, whose offset is far beyond the end of the file. Map the first page instead.
void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
  if (fd >= 0 && (uint64_t)offset >= DRM_PANTHOR_USER_MMIO_OFFSET && is_render_node(fd)) offset = 0;
  return REAL(mmap)(address, length, protection, flags, fd, offset);
}

void *mmap64(void *address, size_t length, int protection, int flags, int fd, off64_t offset) {
  return mmap(address, length, protection, flags, fd, offset);
}

// ------------------------------------------------------------- the kernel drivers by name, and their common answers

static const struct driver {
  const char *name;
  int minor_version;  // at least the version that Mesa 25 requires; panfrost's version states its features
  int (*command)(unsigned, void *);
} drivers[] = {{"msm", 9, msm}, {"v3d", 9, v3d}, {"panfrost", 3, panfrost}, {"panthor", 1, panthor}};

static const struct driver *driver(void) {
  for (unsigned i = 0; i < sizeof drivers / sizeof *drivers; i++)
    if (!strncmp(node(), drivers[i].name, strlen(drivers[i].name))) return &drivers[i];
  return NULL;
}

static void answer_text(char *to, __kernel_size_t *size, const char *text) {
  size_t length = strlen(text);
  if (to && *size >= length) memcpy(to, text, length);
  *size = length;
}

static int version(struct drm_version *q) {
  q->version_major = 1;
  q->version_minor = driver()->minor_version;
  q->version_patchlevel = 0;
  answer_text(q->name, &q->name_len, driver()->name);
  answer_text(q->date, &q->date_len, "0");
  answer_text(q->desc, &q->desc_len, "0");
  return 0;
}

int ioctl(int fd, unsigned long request, ...) {
  va_list rest;
  va_start(rest, request);
  void *argument = va_arg(rest, void *);
  va_end(rest);
  if (!driver() || !is_render_node(fd)) return REAL(ioctl)(fd, request, argument);
  unsigned command = _IOC_NR(request);
  if (command >= DRM_COMMAND_BASE && command < DRM_COMMAND_END) return driver()->command(command - DRM_COMMAND_BASE, argument);
  if (command == _IOC_NR(DRM_IOCTL_VERSION)) return version(argument);
  if (command == _IOC_NR(DRM_IOCTL_GET_CAP)) ((struct drm_get_cap *)argument)->value = 1;
  if (command == _IOC_NR(DRM_IOCTL_SYNCOBJ_CREATE)) ((struct drm_syncobj_create *)argument)->handle = next_id++;
  return 0;
}
