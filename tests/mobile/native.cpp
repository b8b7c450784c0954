// The part of vkq._kompute that asks Vulkan, for a tree where nothing is computed (setup.sh).
#include "bind_instance.hpp"

NB_MODULE(_kompute, m) {
  m.attr("bindings_sha256") = VKQ_BINDINGS_SHA256;
  vkq::bindInstance(m);
}
