// The part of vkq._kompute that queries Vulkan, without the part that computes (setup.sh).
#include "bind_instance.hpp"

NB_MODULE(_kompute, m) {
  m.attr("bindings_sha256") = VKQ_BINDINGS_SHA256;
  vkq::bindInstance(m);
}
