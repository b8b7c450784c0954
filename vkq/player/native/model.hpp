// A loaded model: the plan that runs on a device, recorded once and submitted for each run.
#pragma once
#include <memory>

#include "gpu.hpp"

namespace vkq::player {

// A plan on a device: its pipelines, memory and recorded commands.
class Playing {
 public:
  // Throws Error (VKQ_DEVICE) where the device does not meet the plan's needs.
  Playing(Gpu &gpu, const File &file, const Plan &plan, VkPipelineCache cache);
  Playing(const Playing &) = delete;
  ~Playing();
  // Each input's bytes up, one submission, each output's bytes down. With gpu.turn held.
  void run(const void *const *inputs, void *const *outputs);

 private:
  struct Place {
    VkBuffer buffer = VK_NULL_HANDLE;
    uint64_t offset = 0, bytes = 0;
  };
  struct Compiled {
    VkDescriptorSetLayout setLayout = VK_NULL_HANDLE;
    VkPipelineLayout layout = VK_NULL_HANDLE;
    VkPipeline pipeline = VK_NULL_HANDLE;
  };

  Gpu &gpu;
  const File &file;
  const Plan &plan;
  std::vector<std::unique_ptr<Buffer>> weights;
  std::unique_ptr<Buffer> scratch, arrays, host;  // host: where the host does not see `arrays`
  std::vector<Place> places;                      // of each slot
  std::vector<uint64_t> arrayAt;                  // of inputs, then outputs, in `arrays`
  std::vector<Compiled> programs;
  std::vector<VkBufferView> views;
  VkDescriptorPool sets = VK_NULL_HANDLE;
  VkCommandPool pool = VK_NULL_HANDLE;
  VkCommandBuffer commands = VK_NULL_HANDLE;
  VkFence fence = VK_NULL_HANDLE;
  std::vector<Place> read, written;  // since the last barrier

  void checkNeeds() const;
  void placeArrays();
  void placeWeights();
  void upload(Buffer &to, const std::vector<std::pair<uint64_t, const Constant *>> &parts);
  void compile(VkPipelineCache cache);
  void compile(const Program &program, Compiled &made, VkPipelineCache cache);
  void makeSets();
  void begin();
  void record();
  void order(const Step &step);
  void barrier();
  void dispatch(const Step &step);
  void copyArrays(bool up);
  void submit();
  void release();
};

// The bytes of a file, for as long as someone holds them.
struct Bytes {
  std::shared_ptr<const uint8_t> data;
  uint64_t count;
};

struct Model {
  Gpu &gpu;
  Bytes bytes;  // of the file
  File file;
  std::string described;
  VkPipelineCache cache = VK_NULL_HANDLE;
  std::unique_ptr<Playing> playing;

  Model(Gpu &gpu, Bytes bytes, const char *cachePath);
  ~Model();
  void run(const void *const *inputs, void *const *outputs);

 private:
  size_t cached = 0;  // bytes of the cache as it was read

  void openCache(const char *path);
  void saveCache(const char *path);
  void takePlan();
  bool answersRightly(const Plan &plan);
};

}  // namespace vkq::player
