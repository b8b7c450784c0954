#include "core.hpp"

namespace vkq {

void Resource::adopt() {
  std::lock_guard<std::mutex> lock(core->mutex);
  core->resources.insert(this);
}

void Resource::dispose() {
  if (core->forked()) return;
  const auto lock = locked(core->mutex);
  if (!core->resources.erase(this)) return;
  release();
  core->destroyUnused();
}

void Core::checkProcess() const {
  if (forked())
    throw UsageError(
        name +
        ": this vkq.Device was opened before the process was forked, and Vulkan does not survive a fork: "
        "open no device or session before the fork (gunicorn: without --preload), or start the child with "
        "multiprocessing's 'spawn' method");
}

void Core::check() {
  if (pending.result == VK_ERROR_DEVICE_LOST) lost = true;
  throwPending();
}

void Core::waitIdle() {
  std::lock_guard<std::mutex> lock(queueMutex);
  waitIdleUnchecked(handle());
}

void Core::close() {
  if (forked() || closed.exchange(true)) return;
  std::unique_lock<std::shared_mutex> alone(life, std::defer_lock);
  lockPolitely(alone);
  if (submitted) waitIdle();
  std::lock_guard<std::mutex> lock(mutex);
  for (auto it = resources.begin(); it != resources.end();) {
    if (!(*it)->shown()) (*it)->release();
    it = (*it)->shown() ? std::next(it) : resources.erase(it);
  }
  for (VkFence f : fences.idle) destroyFence(handle(), f);
  if (cache) vkTable.vkDestroyPipelineCache(handle(), cache, nullptr);
  ended = true;
  destroyUnused();
}

void Core::destroyUnused() {
  if (device && ended && resources.empty()) vkTable.vkDestroyDevice(handle(), nullptr);
}

Use::Use(Core &core) : lock(core.life, std::defer_lock) {
  core.checkProcess();
  lockPolitely(lock);
  if (core.closed) throw UsageError(core.name + ": this vkq.Device is closed; open a new one");
  if (core.lost) throw VulkanError(VK_ERROR_DEVICE_LOST, "an earlier call");
  pending = {};
}

}  // namespace vkq
