/* libvkq: runs a model that `vkq export` wrote, on any Vulkan 1.1 device, without Python.
 *
 * A file holds the model's plan for one or more kinds of devices, the shaders, the packed weights and a known
 * answer: inputs and the bytes that must come out. `vkq_load` takes the first plan whose needs the device
 * meets, plays the known answer, and takes the next plan where a byte differs.
 *
 *   vkq_device *device;  vkq_model *model;
 *   if (vkq_open(NULL, &device) || vkq_load(device, "model.vkq", NULL, &model)) puts(vkq_error());
 *   const void *inputs[] = {pixels};  void *outputs[] = {scores};
 *   if (vkq_run(model, inputs, outputs)) puts(vkq_error());
 *   vkq_unload(model);  vkq_close(device);
 *
 * A file is code for the GPU: load files that you trust. Damage is seen (a checksum, then the known answer),
 * malice is not.
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
  VKQ_ARGUMENT = 1, /* a null pointer, an index or a number out of bounds */
  VKQ_FILE = 2,     /* missing, damaged, of another version, or nothing that this library reads */
  VKQ_DEVICE = 3,   /* no Vulkan, no device, no plan that the device runs rightly, a failed Vulkan call */
  VKQ_MEMORY = 4,   /* host or device memory is exhausted; the device stays usable */
  VKQ_LOST = 5      /* the device is lost: unload its models, close it, open it again */
} vkq_status;

typedef enum { VKQ_INT8 = 1, VKQ_UINT8 = 2, VKQ_INT32 = 3, VKQ_FLOAT32 = 4, VKQ_FLOAT16 = 5 } vkq_type;

/* An input or output: a dense array in C order. Valid as long as its model. */
typedef struct {
  const char *name;
  vkq_type type;
  uint32_t rank;
  const uint64_t *shape;
  uint64_t bytes; /* of the array */
  int64_t low, high; /* the numbers that an input of type VKQ_INT32 may hold; else without meaning */
} vkq_array;

/* The text of this thread's last error, "" where there was none. */
VKQ_API const char *vkq_error(void);

/* Opens a device. which: an index, a part of the device's name, or NULL: what VKQ_DEVICE says, else the best:
 * discrete before integrated before virtual before CPU. */
VKQ_API vkq_status vkq_open(const char *which, vkq_device **device);
VKQ_API const char *vkq_device_name(const vkq_device *device);
VKQ_API void vkq_close(vkq_device *device); /* after its models; NULL does nothing */

/* Loads a file, which is mapped into memory: it must not be written to before `vkq_unload` (replace it by a
 * rename). cache: a path for the driver's pipeline cache, read and written; or NULL.
 * vkq_load_memory reads `bytes` at `data`, which may be freed afterwards. */
VKQ_API vkq_status vkq_load(vkq_device *device, const char *path, const char *cache, vkq_model **model);
VKQ_API vkq_status vkq_load_memory(vkq_device *device, const void *data, uint64_t bytes, const char *cache,
                                   vkq_model **model);
VKQ_API void vkq_unload(vkq_model *model); /* NULL does nothing */

/* A file may hold a model for several sets of shapes of its inputs (vkq export --batch 1 8), which share
 * their weights. What vkq_load gives is the model for the first set. vkq_shapes says how many there are, vkq_shape
 * what input `index` is in set `number`, in the file's order.
 * vkq_shaped gives the model whose inputs have these shapes: shapes[i] points to as many sizes as input i has
 * axes. It is loaded when it is first asked for, with its known answer, and belongs to the file: vkq_unload
 * of the first unloads all, and of others does nothing. VKQ_ARGUMENT where the file has no such set. */
VKQ_API uint32_t vkq_shapes(const vkq_model *model);
VKQ_API vkq_status vkq_shape(const vkq_model *model, uint32_t number, uint32_t index, vkq_array *array);
VKQ_API vkq_status vkq_shaped(vkq_model *model, const uint64_t *const *shapes, vkq_model **shaped);

/* How many inputs and outputs there are, and what each is, by its number in the file. */
VKQ_API uint32_t vkq_inputs(const vkq_model *model);
VKQ_API uint32_t vkq_outputs(const vkq_model *model);
VKQ_API vkq_status vkq_input(const vkq_model *model, uint32_t index, vkq_array *array);
VKQ_API vkq_status vkq_output(const vkq_model *model, uint32_t index, vkq_array *array);
/* The plan that runs ("this", "portable", a file's name), a line for each rejected plan: the reason, and
 * where the file has several sets of shapes, a line with all of them. */
VKQ_API const char *vkq_describe(const vkq_model *model);

/* Runs the model and returns when the outputs are written. inputs[i] points to vkq_input(i)'s bytes,
 * outputs[i] to room for vkq_output(i)'s. */
VKQ_API vkq_status vkq_run(vkq_model *model, const void *const *inputs, void *const *outputs);

/* Fault injection, for tests: the nth fallible Vulkan call from now on returns `result` and is not executed;
 * 0 disables it. Returns how many calls were left until the fault of the call before: 0 where it came. */
VKQ_API uint32_t vkq_inject(uint32_t nth, int32_t result);
#ifdef __cplusplus
}
#endif
#endif
