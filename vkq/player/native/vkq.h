/* libvkq: runs a model that `vkq export` wrote, on any Vulkan 1.1 device, without Python.
 *
 * A file has one or more plans, the shaders, the packed weights and a known answer (inputs, and the bytes of
 * the correct outputs). A plan is the model as a list of dispatches for one kind of device, with the features
 * and limits that the device needs. `vkq_load` chooses the first plan that suits the device, and runs it on
 * the inputs of the known answer. If an output byte differs, it tries the next plan. With a pipeline cache,
 * `vkq_load` skips this run if the plan reproduced the known answer before.
 *
 *   vkq_device *device = NULL;  vkq_model *model = NULL;
 *   if (vkq_open(NULL, &device) || vkq_load(device, "model.vkq", NULL, &model)) puts(vkq_error());
 *   const void *inputs[] = {pixels};  void *outputs[] = {scores};
 *   if (vkq_run(model, inputs, outputs)) puts(vkq_error());
 *   vkq_unload(model);  vkq_close(device);
 *
 * A file is code for the GPU: load only files that you trust. Damage is detected (by a checksum, then by the
 * known answer), malice is not.
 *
 * Threads: all functions may be called from any thread. Runs on one device take turns. A model must not be
 * unloaded, nor a device closed, while another thread uses it.
 */
#ifndef VKQ_H
#define VKQ_H
#include <stddef.h>
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#define VKQ_API __attribute__((visibility("default")))
#else
#define VKQ_API
#endif

typedef struct vkq_device vkq_device;
typedef struct vkq_model vkq_model;

typedef enum {
  VKQ_OK = 0,
  VKQ_ARGUMENT = 1, /* a null pointer, or an index or number out of bounds */
  VKQ_FILE = 2,     /* missing, damaged, of another version, or of another format */
  VKQ_DEVICE = 3,   /* no Vulkan, no device, no plan that this device runs correctly, or a failed call */
  VKQ_MEMORY = 4,   /* host or device memory is exhausted; the device stays usable */
  VKQ_LOST = 5      /* the device is lost: unload its models, close it, open it again */
} vkq_status;

typedef enum { VKQ_INT8 = 1, VKQ_UINT8 = 2, VKQ_INT32 = 3, VKQ_FLOAT32 = 4, VKQ_FLOAT16 = 5 } vkq_type;

/* An input or output: a row-major array without gaps. Valid until its model is unloaded. */
typedef struct {
  const char *name;
  vkq_type type;
  uint32_t rank;
  const uint64_t *shape;
  uint64_t bytes; /* size of the array */
  int64_t low, high; /* allowed range of an input of type VKQ_INT32; unused for other types */
} vkq_array;

/* Returns the error text of this thread's last call that returned a vkq_status; "" if that call succeeded.
 * Valid until the thread's next such call. */
VKQ_API const char *vkq_error(void);

/* Opens a device. which: an index in Vulkan's list of devices, or a part of the device's name (of several
 * matches, the best one is opened). NULL or "": the device that the environment variable VKQ_DEVICE names,
 * else the best one: discrete before integrated before virtual before CPU. On failure, *device is NULL. */
VKQ_API vkq_status vkq_open(const char *which, vkq_device **device);
VKQ_API const char *vkq_device_name(const vkq_device *device); /* valid until the device is closed */
VKQ_API void vkq_close(vkq_device *device); /* unload its models first; NULL does nothing */

/* Loads a file. It is mapped into memory, so nobody may write to it before `vkq_unload`; a rename may replace
 * it. On failure, *model is NULL.
 * cache: a path for the driver's pipeline cache, which is read and written; NULL or "": no cache. The file
 * CACHE.proven beside it records which plans reproduced their known answers. vkq_load runs these plans on the
 * known answer again if the model file, the device, the driver, the cache or libvkq has changed. The cache
 * and CACHE.proven may be deleted at any time.
 * vkq_load_memory copies the file's `bytes` bytes from `data`, which may be freed afterwards. */
VKQ_API vkq_status vkq_load(vkq_device *device, const char *path, const char *cache, vkq_model **model);
VKQ_API vkq_status vkq_load_memory(vkq_device *device, const void *data, uint64_t bytes, const char *cache,
                                   vkq_model **model);
VKQ_API void vkq_unload(vkq_model *model); /* NULL does nothing */

/* A file may have a model for several sets of input shapes (vkq export --batch 1 8), which share weights.
 * vkq_load returns the model for the first set. vkq_shapes returns the number of sets, and vkq_shape
 * describes input `index` in set `number`, in the file's order.
 * vkq_shaped returns the model for these input shapes: shapes[i] points to the sizes of all axes of input i.
 * The first call for a set loads its model as vkq_load does. vkq_unload of the model that vkq_load returned
 * unloads the models of all sets; vkq_unload of a model of vkq_shaped does nothing. vkq_shaped returns
 * VKQ_ARGUMENT if the file has no such set. */
VKQ_API uint32_t vkq_shapes(const vkq_model *model);
VKQ_API vkq_status vkq_shape(const vkq_model *model, uint32_t number, uint32_t index, vkq_array *array);
VKQ_API vkq_status vkq_shaped(vkq_model *model, const uint64_t *const *shapes, vkq_model **shaped);

/* vkq_inputs and vkq_outputs return the number of inputs and outputs. vkq_input and vkq_output describe an
 * input or output, by its index in the file. */
VKQ_API uint32_t vkq_inputs(const vkq_model *model);
VKQ_API uint32_t vkq_outputs(const vkq_model *model);
VKQ_API vkq_status vkq_input(const vkq_model *model, uint32_t index, vkq_array *array);
VKQ_API vkq_status vkq_output(const vkq_model *model, uint32_t index, vkq_array *array);
/* Returns as text: the plan that runs ("this", "portable", a kind such as "adreno-740", or the name of the
 * file that described the device), a line with the reason for each rejected plan, a line if the known answer
 * was not run again, and a line with all sets of shapes if the file has several. Valid until the model is
 * unloaded. */
VKQ_API const char *vkq_describe(const vkq_model *model);

/* Runs the model and returns when the outputs are complete. inputs[i] points to the data of vkq_input(i),
 * outputs[i] to memory for the data of vkq_output(i); both have vkq_array.bytes bytes. Returns VKQ_ARGUMENT
 * if an element of a VKQ_INT32 input is below low or above high. */
VKQ_API vkq_status vkq_run(vkq_model *model, const void *const *inputs, void *const *outputs);

/* Fault injection, for tests: from now on, the nth Vulkan call that can fail returns `result` and is not
 * executed; nth 0 disables the fault. Returns the number of calls that were left until the previously set
 * fault; 0 if that fault has happened. */
VKQ_API uint32_t vkq_inject(uint32_t nth, int32_t result);
#ifdef __cplusplus
}
#endif
#endif
