// The C functions of vkq.h: no exception leaves them.
#include <cstdio>
#include <new>

#include "model.hpp"

using namespace vkq::player;

struct vkq_device {
  Gpu gpu;
  explicit vkq_device(const char *which) : gpu(which) {}
};
struct vkq_model {
  Model model;
  vkq_model(Gpu &gpu, std::vector<uint8_t> bytes, const char *cache) : model(gpu, std::move(bytes), cache) {}
};

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

static std::vector<uint8_t> contents(const char *path) {
  FILE *stream = std::fopen(path, "rb");
  if (!stream) throw Error(VKQ_FILE, std::string(path) + " cannot be opened");
  std::vector<uint8_t> bytes;
  if (!std::fseek(stream, 0, SEEK_END)) {
    const long size = std::ftell(stream);
    std::rewind(stream);
    if (size > 0 && size < (1l << 40)) bytes.resize(static_cast<size_t>(size));
  }
  const bool whole = !bytes.empty() && std::fread(bytes.data(), 1, bytes.size(), stream) == bytes.size();
  std::fclose(stream);
  if (!whole) throw Error(VKQ_FILE, std::string(path) + " cannot be read");
  return bytes;
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
    *model = new vkq_model(device->gpu, contents(path), cache);
  });
}

vkq_status vkq_load_memory(vkq_device *device, const void *data, uint64_t bytes, const char *cache,
                           vkq_model **model) {
  return guarded([&] {
    need(model, "model");
    *model = nullptr;
    need(device, "device");
    need(data, "data");
    const auto *first = static_cast<const uint8_t *>(data);
    *model = new vkq_model(device->gpu, std::vector<uint8_t>(first, first + bytes), cache);
  });
}

void vkq_unload(vkq_model *model) { delete model; }

uint32_t vkq_inputs(const vkq_model *model) {
  return model ? static_cast<uint32_t>(model->model.file.inputs.size()) : 0;
}

uint32_t vkq_outputs(const vkq_model *model) {
  return model ? static_cast<uint32_t>(model->model.file.outputs.size()) : 0;
}

vkq_status vkq_input(const vkq_model *model, uint32_t index, vkq_array *array) {
  return guarded([&] {
    need(model, "model");
    need(array, "array");
    describe(model->model.file.inputs, index, array);
  });
}

vkq_status vkq_output(const vkq_model *model, uint32_t index, vkq_array *array) {
  return guarded([&] {
    need(model, "model");
    need(array, "array");
    describe(model->model.file.outputs, index, array);
  });
}

const char *vkq_describe(const vkq_model *model) { return model ? model->model.described.c_str() : ""; }

vkq_status vkq_run(vkq_model *model, const void *const *inputs, void *const *outputs) {
  return guarded([&] {
    need(model, "model");
    const File &file = model->model.file;
    if (!file.inputs.empty()) need(inputs, "inputs");
    if (!file.outputs.empty()) need(outputs, "outputs");
    for (size_t i = 0; i < file.inputs.size(); i++)
      if (file.inputs[i].bytes) need(inputs[i], file.inputs[i].name.c_str());
    for (size_t i = 0; i < file.outputs.size(); i++)
      if (file.outputs[i].bytes) need(outputs[i], file.outputs[i].name.c_str());
    model->model.run(inputs, outputs);
  });
}

void vkq_inject(uint32_t nth, int32_t result) { inject(nth, result); }

}  // extern "C"
