#include "wire/settled.h"

#include "base/bytes.h"
#include "wire/malformed.h"

namespace herring::wire {

std::string encode(const std::vector<Settled>& settled) {
  ByteWriter out;
  out.put(static_cast<uint32_t>(settled.size()));
  for (const Settled& one : settled) out.put(one.subject.kind).put(one.subject.id).put(one.upto);
  return out.take();
}

Result<std::vector<Settled>> decode_settled(std::string_view in) {
  ByteReader reader(in);
  const auto count = reader.get<uint32_t>();
  if (count > kMostSettled) return malformed("settled");
  std::vector<Settled> all;
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    Settled& one = all.emplace_back();
    one.subject.kind = reader.get<Subject::Kind>();
    one.subject.id = reader.get<uint64_t>();
    one.upto = reader.get<uint64_t>();
    if (one.subject.kind > Subject::Kind::kLast || one.upto == 0) return malformed("settled");
  }
  if (!reader.done()) return malformed("settled");
  return all;
}

}  // namespace herring::wire
