// The C functions of vkq.h. They catch all exceptions.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "model.hpp"

using namespace vkq::player;

struct vkq_device {
  Gpu gpu;
  explicit vkq_device(const char *which) : gpu(which) {}
};
struct Loaded;
// A model for one set of shapes. vkq_load returns the model for the first set; vkq_unload frees the models
// for all sets.
struct vkq_model {
  Loaded *of;
  size_t number;
};
struct Loaded {
  Model model;
  std::vector<vkq_model> handles;
  Loaded(Gpu &gpu, Bytes bytes, const char *cache) : model(gpu, std::move(bytes), cache) {
    for (size_t i = 0; i < model.variants.size(); i++) handles.push_back({this, i});
  }
};

static const Shapes &shapesOf(const vkq_model *model) {
  return model->of->model.variants[model->number].shapes;
}

static thread_local std::string lastError;

template <typename Body>
static vkq_status guarded(Body body) {
  try {
    lastError.clear();
    body();
    return VKQ_OK;
  } catch (const Error &error) {
    lastError = error.what();
    return error.status;
  } catch (const std::bad_alloc &) {
    lastError = "the host is out of memory";
    return VKQ_MEMORY;
  } catch (const std::exception &error) {
    lastError = error.what();
    return VKQ_FILE;
  }
}

static void need(const void *pointer, const char *name) {
  if (!pointer) throw Error(VKQ_ARGUMENT, std::string(name) + " is null");
}

static Bytes mapped(const char *path) {
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) throw Error(VKQ_FILE, std::string(path) + " cannot be opened");
  struct stat found;
  const bool regular = !::fstat(file, &found) && S_ISREG(found.st_mode) && found.st_size > 0;
  const auto size = regular ? static_cast<size_t>(found.st_size) : 0;
  void *at = regular ? ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0) : MAP_FAILED;
  ::close(file);
  if (at == MAP_FAILED) throw Error(VKQ_FILE, std::string(path) + " cannot be read");
  const auto release = [size](const uint8_t *bytes) { ::munmap(const_cast<uint8_t *>(bytes), size); };
  return {std::shared_ptr<const uint8_t>(static_cast<const uint8_t *>(at), release), size};
}

static Bytes copied(const void *data, uint64_t count) {
  std::shared_ptr<uint8_t> bytes(new uint8_t[count ? count : 1], std::default_delete<uint8_t[]>());
  std::memcpy(bytes.get(), data, count);
  return {bytes, count};
}

static void describe(const std::vector<Array> &arrays, uint32_t index, vkq_array *out) {
  if (index >= arrays.size())
    throw Error(VKQ_ARGUMENT,
                "index is " + std::to_string(index) + "; there are " + std::to_string(arrays.size()));
  const Array &a = arrays[index];
  const auto rank = static_cast<uint32_t>(a.shape.size());
  *out = {a.name.c_str(), a.type, rank, a.shape.data(), a.bytes, a.low, a.high};
}

extern "C" {

const char *vkq_error(void) { return lastError.c_str(); }

vkq_status vkq_open(const char *which, vkq_device **device) {
  return guarded([&] {
    need(device, "device");
    *device = nullptr;
    *device = new vkq_device(which);
  });
}

const char *vkq_device_name(const vkq_device *device) {
  return device ? device->gpu.properties.deviceName : "";
}

void vkq_close(vkq_device *device) { delete device; }

vkq_status vkq_load(vkq_device *device, const char *path, const char *cache, vkq_model **model) {
  return guarded([&] {
    need(model, "model");
    *model = nullptr;
    need(device, "device");
    need(path, "path");
    *model = (new Loaded(device->gpu, mapped(path), cache))->handles.data();
  });
}

vkq_status vkq_load_memory(vkq_device *device, const void *data, uint64_t bytes, const char *cache,
                           vkq_model **model) {
  return guarded([&] {
    need(model, "model");
    *model = nullptr;
    need(device, "device");
    need(data, "data");
    *model = (new Loaded(device->gpu, copied(data, bytes), cache))->handles.data();
  });
}

void vkq_unload(vkq_model *model) {
  if (model && !model->number) delete model->of;
}

uint32_t vkq_shapes(const vkq_model *model) {
  return model ? static_cast<uint32_t>(model->of->handles.size()) : 0;
}

vkq_status vkq_shape(const vkq_model *model, uint32_t number, uint32_t index, vkq_array *array) {
  return guarded([&] {
    need(model, "model");
    need(array, "array");
    const auto &sets = model->of->model.file.sets;
    if (number >= sets.size())
      throw Error(VKQ_ARGUMENT, "number is " + std::to_string(number) + "; the file has " +
                                    std::to_string(sets.size()) + " sets of shapes");
    describe(sets[number].inputs, index, array);
  });
}

vkq_status vkq_shaped(vkq_model *model, const uint64_t *const *shapes, vkq_model **shaped) {
  return guarded([&] {
    need(shaped, "shaped");
    *shaped = nullptr;
    need(model, "model");
    for (size_t i = 0; i < shapesOf(model).inputs.size(); i++) {
      need(shapes, "shapes");
      if (!shapesOf(model).inputs[i].shape.empty()) need(shapes[i], shapesOf(model).inputs[i].name.c_str());
    }
    Loaded &of = *model->of;
    const size_t number = of.model.find(shapes);
    of.model.load(number);
    *shaped = &of.handles[number];
  });
}

uint32_t vkq_inputs(const vkq_model *model) {
  return model ? static_cast<uint32_t>(shapesOf(model).inputs.size()) : 0;
}

uint32_t vkq_outputs(const vkq_model *model) {
  return model ? static_cast<uint32_t>(shapesOf(model).outputs.size()) : 0;
}

vkq_status vkq_input(const vkq_model *model, uint32_t index, vkq_array *array) {
  return guarded([&] {
    need(model, "model");
    need(array, "array");
    describe(shapesOf(model).inputs, index, array);
  });
}

vkq_status vkq_output(const vkq_model *model, uint32_t index, vkq_array *array) {
  return guarded([&] {
    need(model, "model");
    need(array, "array");
    describe(shapesOf(model).outputs, index, array);
  });
}

const char *vkq_describe(const vkq_model *model) {
  return model ? model->of->model.variants[model->number].described.c_str() : "";
}

vkq_status vkq_run(vkq_model *model, const void *const *inputs, void *const *outputs) {
  return guarded([&] {
    need(model, "model");
    const Shapes &shapes = shapesOf(model);
    if (!shapes.inputs.empty()) need(inputs, "inputs");
    if (!shapes.outputs.empty()) need(outputs, "outputs");
    for (size_t i = 0; i < shapes.inputs.size(); i++)
      if (shapes.inputs[i].bytes) need(inputs[i], shapes.inputs[i].name.c_str());
    for (size_t i = 0; i < shapes.outputs.size(); i++)
      if (shapes.outputs[i].bytes) need(outputs[i], shapes.outputs[i].name.c_str());
    model->of->model.run(model->number, inputs, outputs);
  });
}

uint32_t vkq_inject(uint32_t nth, int32_t result) { return inject(nth, result); }

}  // extern "C"
