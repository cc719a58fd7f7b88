// The plan, for callers that need it before there is a job.
#include "plan/plan.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"

namespace herring::bindings {
namespace {

// Returns the fusion buffers of gradients that are listed in order of production. For each buffer:
// its size in bytes and the gradient that completes it.
std::vector<std::pair<size_t, uint32_t>> fusion_buffers(const std::vector<uint64_t>& elements,
                                                        const std::string& dtype, uint32_t nodes,
                                                        uint32_t dedicated) {
  const DType type = take(parse_dtype(dtype));
  std::vector<plan::Gradient> gradients;
  gradients.reserve(elements.size());
  for (const uint64_t count : elements) gradients.push_back({count, type});
  const plan::Plan plan = take(
      plan::make_plan(gradients, {nodes, plan::server_weights(nodes, dedicated)}, {}));
  std::vector<std::pair<size_t, uint32_t>> buffers;
  for (const plan::Buffer& buffer : plan.buffers) {
    buffers.emplace_back(buffer.range.bytes, buffer.last_gradient);
  }
  return buffers;
}

}  // namespace

void register_plan(nb::module_& module) {
  using namespace nb::literals;
  module.def("fusion_buffers", &fusion_buffers, "elements"_a, "dtype"_a, "nodes"_a, "dedicated"_a);
}

}  // namespace herring::bindings
