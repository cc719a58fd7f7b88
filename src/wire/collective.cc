#include "wire/collective.h"

#include <string>
#include <type_traits>
#include <utility>

namespace herring::wire {
namespace {

template <typename Find, size_t... Index>
void each_kind(const Find& find, std::index_sequence<Index...>) {
  (find(std::variant_alternative_t<Index, Collective>{}), ...);
}

}  // namespace

const char* name_of(Algorithm algorithm) {
  constexpr const char* kNames[] = {"herring", "server",    "tree",
                                    "ring",    "butterfly", "doubling"};
  return kNames[static_cast<int>(algorithm)];
}

const char* name_of(const Collective& what) {
  return std::visit([](const auto& kind) { return kind.kName; }, what);
}

std::optional<Collective> collective_of(std::string_view name) {
  std::optional<Collective> found;
  each_kind([&](auto kind) { if (name == kind.kName) found = std::move(kind); },
            std::make_index_sequence<std::variant_size_v<Collective>>());
  return found;
}

const Reduction* reduction_of(const Collective& what) {
  if (const auto* kind = std::get_if<AllReduce>(&what)) return &kind->reduction;
  if (const auto* kind = std::get_if<ReduceScatter>(&what)) return &kind->reduction;
  return nullptr;
}

bool is_message(const Collective& what) { return is<Send>(what) || is<Receive>(what); }

std::optional<uint32_t> other_of(const Collective& what) {
  if (const auto* send = std::get_if<Send>(&what)) return send->to;
  const auto* receive = std::get_if<Receive>(&what);
  return receive != nullptr ? receive->from : std::nullopt;
}

bool gives_data(const Collective& what, uint32_t rank) {
  if (const auto* broadcast = std::get_if<Broadcast>(&what)) return broadcast->root == rank;
  return !is<Barrier>(what) && !is<FormGroup>(what) && !is<Receive>(what) && !is<Join>(what);
}

bool is_ragged(const Collective& what) { return is<AllGather>(what) || is<AllToAll>(what); }

bool goes_without_joined(const Collective& what) {
  const auto* allreduce = std::get_if<AllReduce>(&what);
  return allreduce != nullptr && allreduce->algorithm == Algorithm::kHerring;
}

bool agree(const Collective& a, const Collective& b) {
  if (a.index() != b.index()) return false;
  return std::visit([&b]<typename Kind>(const Kind& kind) {
    const Kind& other = std::get<Kind>(b);
    if constexpr (std::is_same_v<Kind, AllToAll> || std::is_same_v<Kind, Join>) return true;
    return Kind::fields(kind) == Kind::fields(other);
  }, a);
}

}  // namespace herring::wire
