// player FILE COUNT: makes COUNT mutations of a file of `vkq export`, and reads each mutated file with all
// its packed parts, under sanitizers. Half of these files get a valid checksum, so that the code after the
// checksum test runs.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "file.hpp"

// Unpack everything that a load unpacks.
static void unpack(const vkq::player::Shapes &shapes) {
  for (const auto &input : shapes.inputs) input.answer.whole();
  for (const auto &plan : shapes.plans) {
    for (const auto &answer : plan.answers) answer.whole();
    for (const auto &program : plan.programs) program.spirv.shader();
    for (const auto &one : plan.constants) {
      std::vector<uint8_t> words(one.blob.bytes);
      one.copy(words.data());
    }
  }
}

int main(int, char **words) {
  FILE *stream = std::fopen(words[1], "rb");
  if (!stream) return 2;
  std::vector<uint8_t> data(1 << 24);
  data.resize(std::fread(data.data(), 1, data.size(), stream));
  std::fclose(stream);
  uint64_t head;
  std::memcpy(&head, data.data() + 8, 8);
  std::mt19937 random(1);
  int whole = 0, refused = 0;
  for (int i = 0; i < std::atoi(words[2]); i++) {
    std::vector<uint8_t> broken(data.begin(), data.begin() + (i % 7 ? data.size() : random() % data.size()));
    for (unsigned k = random() % 4 + 1; k && broken.size() > 48; k--) {
      const uint64_t at = random() % 4 ? 40 + random() % head : random() % broken.size();
      static const uint8_t ends[]{0, 1, 127, 128, 255};
      if (at < broken.size()) broken[at] = random() % 2 ? ends[random() % 5] : uint8_t(random());
    }
    const bool sealed = i % 2 && broken.size() > 48;
    if (sealed) {
      const uint64_t size = broken.size() / 8 * 8;
      broken.resize(size);
      const uint64_t sum = vkq::player::checksum(broken.data() + 40, size - 40);
      std::memcpy(broken.data() + 16, &size, 8);
      std::memcpy(broken.data() + 24, &sum, 8);
    }
    try {
      for (const auto &one : vkq::player::read(broken.data(), broken.size()).sets) unpack(one);
      if (!sealed && broken != data) {
        std::printf("file %d was changed, and its checksum did not show it\n", i);
        return 1;
      }
      whole++;
    } catch (const vkq::player::Error &) {
      refused++;
    }
  }
  std::printf("%d read, %d refused\n", whole, refused);
}
