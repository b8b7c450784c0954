// Records, beside the pipeline cache, which known answers were reproduced on this device.
#pragma once
#include <string>
#include <vector>

#include "gpu.hpp"

namespace vkq::player {

// Writes a file atomically.
bool replace(const std::string &path, const char *data, size_t size);
// Returns the first bytes of a file, about `most` of them; none if it cannot be read.
std::vector<char> content(const std::string &path, size_t most);

// A proof records that a plan reproduced its known answer. It is a checksum of everything that decides what
// the plan computes: the file, libvkq, the device, its driver, and the pipeline cache given to the driver. If
// any of these differs, there is no proof, and the known answer is run again.
class Proofs {
 public:
  // path: the pipeline cache's path, "" for none; cache: the bytes of the cache given to the driver;
  // file: the head of the model's file, which contains the file's checksum.
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
