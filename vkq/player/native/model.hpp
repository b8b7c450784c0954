// A loaded model. For each set of shapes in use it has the chosen plan, which is recorded once and submitted
// in each run.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "gpu.hpp"
#include "proofs.hpp"
#include "together.hpp"

namespace vkq::player {

constexpr uint64_t VECTOR = 16;  // bytes of the largest element of a shader's array

inline uint64_t aligned(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

// A constant on the device: its buffer and offset. The plans that use the buffer share its ownership.
struct Weight {
  std::weak_ptr<Buffer> buffer;
  uint64_t at = 0;
};
// The key of a blob, and the sizes and strides with which its words are read (`Constant`).
using Words = std::tuple<Blob::Key, std::vector<uint32_t>, std::vector<uint32_t>>;
using Weights = std::map<Words, Weight>;

// A plan on a device: its pipelines, memory and recorded commands. Callers of the members hold gpu.turn.
class Playing {
 public:
  // If `first` is not null, also runs the plan on these inputs: the first steps run while later pipelines
  // are compiled.
  // Throws Error (VKQ_DEVICE) if the device does not meet the plan's needs.
  Playing(Gpu &gpu, const Shapes &shapes, const Plan &plan, VkPipelineCache cache, Weights &known,
          const void *const *first);
  Playing(const Playing &) = delete;
  ~Playing();
  // Uploads the inputs, submits the recorded commands, and downloads the outputs.
  void run(const void *const *inputs, void *const *outputs);
  void read(void *const *outputs) const;  // downloads the outputs of the last run

 private:
  struct Place {
    VkBuffer buffer = VK_NULL_HANDLE;
    uint64_t offset = 0, bytes = 0;
  };
  // SPIR-V that several programs share; the first thread that needs it unpacks it.
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
  std::unique_ptr<Buffer> scratch, arrays, host;  // host: needed if `arrays` is not host-visible
  std::vector<Place> places;                      // one for each slot
  std::vector<uint64_t> arrayAt;                  // offsets of the inputs, then of the outputs, in `arrays`
  std::vector<Compiled> programs;
  std::vector<VkBufferView> views;
  VkDescriptorPool sets = VK_NULL_HANDLE;
  VkCommandPool pool = VK_NULL_HANDLE;
  using Submission = std::vector<VkCommandBuffer>;
  std::vector<Submission> submissions;        // the submissions of one run, in order
  VkCommandBuffer commands = VK_NULL_HANDLE;  // the command buffer being recorded
  VkFence fence = VK_NULL_HANDLE;
  const bool plays;                           // whether recording also runs the plan
  bool busy = false;                          // work was submitted and not yet waited for
  std::vector<Place> reads, writes;           // ranges used since the last barrier

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

// The bytes of a file. The last reference frees them.
struct Bytes {
  std::shared_ptr<const uint8_t> data;
  uint64_t count;
};

// The model for one set of shapes. Its first use loads it.
struct Variant {
  const Shapes &shapes;
  std::string described;
  std::unique_ptr<Playing> playing;
};

struct Model {
  Gpu &gpu;
  Bytes bytes;  // the file's content
  File file;
  VkPipelineCache cache = VK_NULL_HANDLE;
  std::vector<Variant> variants;  // one for each set of shapes

  // Loads the first variant.
  Model(Gpu &gpu, Bytes bytes, const char *cachePath);
  ~Model();
  // Returns the number of the variant whose inputs have these sizes. Throws Error (VKQ_ARGUMENT) if there is
  // none.
  size_t find(const uint64_t *const *sizes) const;
  // Loads a plan for variant `number`: the first plan that reproduces its known answer. A plan with a proof
  // is not run for this.
  void load(size_t number);
  void run(size_t number, const void *const *inputs, void *const *outputs);

 private:
  std::string cachePath;  // "": no cache
  size_t cached = 0;      // size of the cache when it was last read or written
  std::unique_ptr<Proofs> proofs;
  Weights known;

  void openCache();
  void saveCache();
  void takePlan(Variant &of);
  std::unique_ptr<Playing> played(const Shapes &shapes, const Plan &plan, bool proven);
};

}  // namespace vkq::player
