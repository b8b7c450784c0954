#pragma once
#include <nanobind/nanobind.h>

namespace vkq {

void bindInstance(nanobind::module_ &m);  // the loader, Instance

}  // namespace vkq
