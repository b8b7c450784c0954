// vkq._kompute: Kompute's Sequence on a device that vkq opened, with vkq's own dispatch operation, memory and
// error checks.
//
// Kompute records and submits (kp::Sequence, kp::OpBase). vkq extends it at two documented interfaces:
// Kompute's operations (operations.hpp: shared pipelines, full memory barriers, reset timestamps) and
// Vulkan-Hpp's dispatch table (seam.hpp: results that Kompute ignores are stored, fences are reused, tests
// can make the n-th call fail).
#include "bindings.hpp"

#include "bind_instance.hpp"

namespace vkq {

static std::atomic<bool> ending{false};  // the process ends: only its main thread may run Python code

static void raise(const char *module, const char *function, VkResult result, const char *call) {
  nb::object error = nb::module_::import_(module).attr(function)(static_cast<int>(result), call);
  PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.ptr())), error.ptr());
}

static void translate(const std::exception_ptr &pointer, void *) {
  if (ending) parkUnlessMain();
  try {
    std::rethrow_exception(pointer);
  } catch (const VulkanError &e) {
    raise("vkq.device.vulkan", "error_for", e.result, e.call);
  } catch (const NeverComputed &e) {
    raise("vkq.device.vulkan", "never_computed", e.failure.result, e.failure.call);
  } catch (const BindingTooLarge &e) {
    PyErr_SetString(nb::module_::import_("vkq.errors").attr("ArgumentError").ptr(), e.what());
  } catch (const UsageError &e) {
    PyErr_SetString(nb::module_::import_("vkq.errors").attr("DeviceError").ptr(), e.what());
  }
}

static void bindProcess(nb::module_ &m) {
  m.def(
      "begin_exit", [] { noteMain(), ending = true; },
      "The process ends: other threads that get an error from here on are parked, because Python code must "
      "not be run by them any more.");
  m.def(
      "inject",
      [](const std::string &call, uint64_t nth, int result, uint64_t times) {
        inject(call, nth, static_cast<VkResult>(result), times);
      },
      nb::arg("call"), nb::arg("nth") = 0, nb::arg("result") = 0, nb::arg("times") = 1,
      "Make the nth call (1-based; 0: none) of this Vulkan function ('*': any) and the times - 1 calls after "
      "it fail with this VkResult; '' ends it. For tests.");
  m.def("injected_calls", injectedCalls, "How many calls matched since inject().");
}

}  // namespace vkq

NB_MODULE(_kompute, m) {
  if (!vkq::gilHeld) throw std::runtime_error("this Python has no PyGILState_Check");
  m.attr("bindings_sha256") = VKQ_BINDINGS_SHA256;
  m.attr("kompute_version") = VKQ_KOMPUTE_VERSION;
  // Objects alive at interpreter exit are closed by the device's exit handler.
  nanobind::set_leak_warnings(false);
  nanobind::register_exception_translator(vkq::translate, nullptr);
  vkq::bindInstance(m);
  vkq::bindMemory(m);
  vkq::bindPacking(m);
  vkq::bindRecording(m);
  vkq::bindQueue(m);
  vkq::bindContext(m);
  vkq::bindProcess(m);
}
