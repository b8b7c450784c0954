// Records which known answers were reproduced here, beside the pipeline cache.
#pragma once
#include <string>
#include <vector>

#include "gpu.hpp"

namespace vkq::player {

// Writes a file as a whole or not at all.
bool replace(const std::string &path, const char *data, size_t size);
// Returns the first bytes of a file, about `most` of them; none if it cannot be read.
std::vector<char> content(const std::string &path, size_t most);

// A proof says that a plan reproduced its known answer before. It is a checksum of everything that decides
// what the plan computes: the file, libvkq, the device, its driver, and the pipeline cache that the driver
// got. If any of these differs, there is no proof, and the known answer is run again.
class Proofs {
 public:
  // path: that of the pipeline cache, "" for none; cache: its bytes as the driver got them; file: the head of
  // the model's file, which contains the checksum.
  Proofs(const Gpu &gpu, const std::string &path, const std::vector<char> &cache, const uint8_t *file);
  bool has(size_t set, size_t plan) const;
  void add(size_t set, size_t plan);  // after the plan reproduced its known answer

 private:
  std::string path;     // "": no proofs
  std::string subject;  // the part that all proofs of this file share
  std::vector<uint64_t> known;

  uint64_t proof(size_t set, size_t plan) const;
};

}  // namespace vkq::player
