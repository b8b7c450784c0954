// A loaded model: for each set of shapes the plan that runs, recorded once and submitted for each run.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "gpu.hpp"
#include "together.hpp"

namespace vkq::player {

// Where constants lie on the device: for as long as a plan holds their buffer, all others read them there.
struct Weight {
  std::weak_ptr<Buffer> buffer;
  uint64_t at = 0;
};
using Words = std::tuple<Blob::Key, std::vector<uint32_t>, std::vector<uint32_t>>;  // and their order
using Weights = std::map<Words, Weight>;

// A plan on a device: its pipelines, memory and recorded commands. All with gpu.turn held.
class Playing {
 public:
  // Runs on `first`, too: its first steps while pipelines of later ones are made. Throws Error (VKQ_DEVICE)
  // where the device does not meet the plan's needs.
  Playing(Gpu &gpu, const Shapes &shapes, const Plan &plan, VkPipelineCache cache, Weights &known,
          const void *const *first);
  Playing(const Playing &) = delete;
  ~Playing();
  // Each input's bytes up, what is submitted, each output's bytes down.
  void run(const void *const *inputs, void *const *outputs);
  void read(void *const *outputs) const;  // each output's bytes down, of the last run

 private:
  struct Place {
    VkBuffer buffer = VK_NULL_HANDLE;
    uint64_t offset = 0, bytes = 0;
  };
  // SPIR-V that programs share: the first thread that needs it unpacks it.
  struct Code {
    std::mutex turn;
    std::vector<uint32_t> words;
  };
  struct Compiled {
    VkDescriptorSetLayout setLayout = VK_NULL_HANDLE;
    VkPipelineLayout layout = VK_NULL_HANDLE;
    VkPipeline pipeline = VK_NULL_HANDLE;
  };

  Gpu &gpu;
  const Shapes &shapes;
  const Plan &plan;
  std::vector<std::shared_ptr<Buffer>> weights;
  std::unique_ptr<Buffer> scratch, arrays, host;  // host: where the host does not see `arrays`
  std::vector<Place> places;                      // of each slot
  std::vector<uint64_t> arrayAt;                  // of inputs, then outputs, in `arrays`
  std::vector<Compiled> programs;
  std::vector<VkBufferView> views;
  VkDescriptorPool sets = VK_NULL_HANDLE;
  VkCommandPool pool = VK_NULL_HANDLE;
  using Submission = std::vector<VkCommandBuffer>;
  std::vector<Submission> submissions;        // of a run, in their order
  VkCommandBuffer commands = VK_NULL_HANDLE;  // what is being recorded
  VkFence fence = VK_NULL_HANDLE;
  bool busy = false;                          // something is submitted that was not waited for
  std::vector<Place> reads, writes;           // since the last barrier

  void checkNeeds() const;
  void placeArrays();
  void makeCommands();
  void placeWeights(Weights &known);
  template <typename Placed>
  void uploadWeights(const std::vector<const Constant *> &fresh, Placed placed);
  void upload(Buffer &to, const std::vector<std::pair<uint64_t, const Constant *>> &parts);
  void compile(const Program &program, Compiled &made, Code &code, VkPipelineCache cache);
  void makeSets();
  void begin(bool submission);
  void end();
  void next(bool submission);
  void record(Together &pipelines);
  void order(const Step &step);
  void barrier();
  VkDescriptorSet makeSet(const Step &step);
  void fill(const Step &step);
  void dispatch(const Step &step, VkDescriptorSet set, const Grid &grid);
  void copyArrays(bool up);
  void write(const void *const *inputs);
  void submit();
  void send(const Submission &one, bool last);
  void wait();
  void settle();
  void release();
};

// The bytes of a file, for as long as someone holds them.
struct Bytes {
  std::shared_ptr<const uint8_t> data;
  uint64_t count;
};

// The model for one set of shapes, which is loaded when it is first asked for.
struct Variant {
  const Shapes &shapes;
  std::string described;
  std::unique_ptr<Playing> playing;
};

struct Model {
  Gpu &gpu;
  Bytes bytes;  // of the file
  File file;
  VkPipelineCache cache = VK_NULL_HANDLE;
  std::vector<Variant> variants;  // of each set of shapes

  // The first variant is loaded.
  Model(Gpu &gpu, Bytes bytes, const char *cachePath);
  ~Model();
  // The number of the variant whose inputs have these sizes. Throws Error (VKQ_ARGUMENT) where there is none.
  size_t find(const uint64_t *const *sizes) const;
  // Its plan, which has given the known answer.
  void load(size_t number);
  void run(size_t number, const void *const *inputs, void *const *outputs);

 private:
  std::string cachePath;  // "": none
  size_t cached = 0;      // bytes of the cache as it was read or written
  Weights known;

  void openCache();
  void saveCache();
  void takePlan(Variant &of);
  std::unique_ptr<Playing> played(const Shapes &shapes, const Plan &plan);
};

}  // namespace vkq::player
