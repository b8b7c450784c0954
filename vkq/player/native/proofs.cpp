#include "proofs.hpp"

#ifdef __linux__
#include <link.h>
#include <sys/stat.h>
#endif

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace vkq::player {

static constexpr char RUNS[] = VKQ_VERSION " 1";  // increment the number when the execution of plans changes
static constexpr size_t MOST_PROOFS = 256, FILE_HEAD = 40;

bool replace(const std::string &path, const char *data, size_t size) {
  const std::string partial = path + ".part";
  FILE *stream = std::fopen(partial.c_str(), "wb");
  if (!stream) return false;
  const bool whole = std::fwrite(data, 1, size, stream) == size;
  if (!std::fclose(stream) && whole && !std::rename(partial.c_str(), path.c_str())) return true;
  std::remove(partial.c_str());
  return false;
}

std::vector<char> content(const std::string &path, size_t most) {
  std::vector<char> found;
  if (FILE *stream = path.empty() ? nullptr : std::fopen(path.c_str(), "rb")) {
    char block[1 << 16];
    for (size_t n; found.size() < most && (n = std::fread(block, 1, sizeof block, stream)) > 0;)
      found.insert(found.end(), block, block + n);
    std::fclose(stream);
  }
  return found;
}

static uint64_t sum(const char *data, size_t size) {
  std::vector<uint8_t> words((size + 15) / 8 * 8);  // begins with the size, so that trailing zeros count
  std::memcpy(words.data(), &size, 8);
  if (size) std::memcpy(words.data() + 8, data, size);
  return checksum(words.data(), words.size());
}

#ifdef __linux__
// Adds a loaded library's build ID; if it has none, its file's name, size and time.
static int addLibrary(dl_phdr_info *info, size_t, void *all) {
  std::string build;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto &p = info->dlpi_phdr[i];
    if (p.p_type != PT_NOTE) continue;
    const char *notes = reinterpret_cast<const char *>(info->dlpi_addr + p.p_vaddr);
    for (size_t at = 0; at + sizeof(ElfW(Nhdr)) <= p.p_memsz;) {
      ElfW(Nhdr) note;
      std::memcpy(&note, notes + at, sizeof note);
      const size_t name = at + sizeof note, data = name + (note.n_namesz + 3) / 4 * 4;
      if (data + note.n_descsz > p.p_memsz) break;
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && !std::memcmp(notes + name, "GNU", 4))
        build.assign(notes + data, note.n_descsz);
      at = data + (note.n_descsz + 3) / 4 * 4;
    }
  }
  const char *path = info->dlpi_name && *info->dlpi_name ? info->dlpi_name : "/proc/self/exe";
  struct stat file;
  if (build.empty() && !stat(path, &file))
    build = std::string(path) + ' ' + std::to_string(file.st_size) + ' ' + std::to_string(file.st_mtime);
  static_cast<std::vector<std::string> *>(all)->push_back(build.empty() ? path : build);
  return 0;
}
#endif

// Returns the build IDs of all libraries in this process; the driver is one of them.
static std::string libraries() {
  std::vector<std::string> all;
#ifdef __linux__
  dl_iterate_phdr(addLibrary, &all);
#endif
  std::sort(all.begin(), all.end());
  std::string found;
  for (const std::string &one : all) found += one + '\n';
  return found;
}

// Returns the processor's model and features.
static std::string processor() {
  const std::vector<char> lines = content("/proc/cpuinfo", size_t(1) << 24);
  std::string found;
  for (auto line = lines.begin(), end = line; line != lines.end(); line = end) {
    end = std::find(line, lines.end(), '\n');
    const std::string text(line, end == lines.end() ? end : ++end);
    for (const char *name : {"vendor_id", "model name", "flags", "CPU part", "Features"})
      if (!text.compare(0, std::strlen(name), name)) found += text;
  }
  return found;
}

// Returns a text that identifies the device and its driver. A CPU driver may have the same version number in
// all releases, as SwiftShader does. So the text for a CPU device also has the libraries' build IDs and the
// processor. Returns "" if these are unknown.
static std::string identity(const Gpu &gpu) {
  VkPhysicalDeviceIDProperties ids{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES};
  VkPhysicalDeviceProperties2 all{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, &ids, {}};
  gpu.vkGetPhysicalDeviceProperties2(gpu.physical, &all);
  const VkPhysicalDeviceProperties &p = all.properties;
  std::string found = std::string(p.deviceName) + '\n';
  const auto add = [&](const void *data, size_t size) {
    found.append(static_cast<const char *>(data), size);
  };
  const uint32_t numbers[]{p.apiVersion, p.driverVersion, p.vendorID, p.deviceID, p.deviceType};
  add(numbers, sizeof numbers);
  add(p.pipelineCacheUUID, VK_UUID_SIZE);
  add(ids.deviceUUID, VK_UUID_SIZE);
  add(ids.driverUUID, VK_UUID_SIZE);
  if (p.deviceType != VK_PHYSICAL_DEVICE_TYPE_CPU) return found;
  const std::string code = libraries(), cpu = processor();
  return code.empty() || cpu.empty() ? "" : found + code + cpu;
}

Proofs::Proofs(const Gpu &gpu, const std::string &cachePath, const std::vector<char> &cache,
               const uint8_t *file) {
  if (cachePath.empty()) return;
  const std::string device = identity(gpu);
  if (device.empty()) return;
  path = cachePath + ".proven";
  const uint64_t sums[]{sum(device.data(), device.size()), sum(cache.data(), cache.size())};
  subject = RUNS;
  subject.append(reinterpret_cast<const char *>(file), FILE_HEAD);
  subject.append(reinterpret_cast<const char *>(sums), sizeof sums);
  const std::vector<char> kept = content(path, MOST_PROOFS * 8);
  known.resize(std::min(kept.size() / 8, MOST_PROOFS));
  if (!known.empty()) std::memcpy(known.data(), kept.data(), 8 * known.size());
}

uint64_t Proofs::proof(size_t set, size_t plan) const {
  const uint64_t numbers[]{set, plan};
  const std::string all = subject + std::string(reinterpret_cast<const char *>(numbers), sizeof numbers);
  return sum(all.data(), all.size());
}

bool Proofs::has(size_t set, size_t plan) const {
  return !path.empty() && std::find(known.begin(), known.end(), proof(set, plan)) != known.end();
}

void Proofs::add(size_t set, size_t plan) {
  if (path.empty() || has(set, plan)) return;
  if (known.size() == MOST_PROOFS) known.erase(known.begin());
  known.push_back(proof(set, plan));
  replace(path, reinterpret_cast<const char *>(known.data()), 8 * known.size());
}

}  // namespace vkq::player
