// Removes noise from a photograph: denoise MODEL.vkq < noisy.ppm > clean.ppm
// The photograph must have a size for which the model was exported. This command exports it for two sizes:
//
//   vkq export examples/models/denoise.onnx -o denoise.vkq --shape x=1x3x400x600 --shape x=1x3x600x400
//   c++ -std=c++17 examples/c/denoise.cpp -I vkq/player/native -L FOLDER_OF_LIBVKQ -lvkq -o denoise
#include <vkq.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

static void check(vkq_status status) {
  if (status != VKQ_OK) throw std::runtime_error(vkq_error());
}

struct Size {
  uint64_t height, width;
};

static Size head(std::istream &in) {
  std::string kind;
  uint64_t width, height, most;
  in >> kind >> width >> height >> most;
  in.get();
  if (!in || kind != "P6" || most != 255)
    throw std::runtime_error("standard input must be a binary PPM of 255 levels");
  return {height, width};
}

// Bytes of red, green, blue for each pixel, as planes of floats from 0 to 1.
static std::vector<float> planes(std::istream &in, uint64_t h, uint64_t w) {
  std::vector<char> bytes(3 * w * h);
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!in) throw std::runtime_error("the picture ends early");
  std::vector<float> out(bytes.size());
  for (uint64_t i = 0; i < w * h; i++)
    for (uint64_t c = 0; c < 3; c++) out[c * w * h + i] = static_cast<unsigned char>(bytes[3 * i + c]) / 255.0f;
  return out;
}

static void write(std::ostream &out, const std::vector<float> &planes, uint64_t height, uint64_t width) {
  out << "P6\n" << width << " " << height << "\n255\n";
  for (uint64_t i = 0; i < width * height; i++)
    for (uint64_t c = 0; c < 3; c++) {
      const float value = std::clamp(planes[c * width * height + i], 0.0f, 1.0f);
      out.put(static_cast<char>(std::lround(255 * value)));
    }
}

int main(int count, char **words) try {
  if (count < 2) throw std::runtime_error("usage: denoise MODEL.vkq < noisy.ppm > clean.ppm");
  vkq_device *opened;
  check(vkq_open(nullptr, &opened));
  const std::unique_ptr<vkq_device, void (*)(vkq_device *)> device(opened, vkq_close);
  vkq_model *loaded;
  check(vkq_load(device.get(), words[1], nullptr, &loaded));
  const std::unique_ptr<vkq_model, void (*)(vkq_model *)> model(loaded, vkq_unload);

  const auto [height, width] = head(std::cin);
  const uint64_t shape[]{1, 3, height, width}, *shapes[]{shape};
  vkq_model *shaped;  // an error if the file has no model for this shape, before the pixels are read
  check(vkq_shaped(model.get(), shapes, &shaped));
  std::cerr << vkq_device_name(device.get()) << "\n" << vkq_describe(shaped) << "\n";
  const std::vector<float> noisy = planes(std::cin, height, width);
  std::vector<float> clean(noisy.size());
  const void *inputs[] = {noisy.data()};
  void *outputs[] = {clean.data()};
  check(vkq_run(shaped, inputs, outputs));
  write(std::cout, clean, height, width);
} catch (const std::exception &error) {
  std::cerr << "denoise: " << error.what() << "\n";
  return 1;
}
