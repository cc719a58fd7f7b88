#include "wire/settled.h"

#include "base/fields.h"

namespace herring::wire {

template <typename Io>
void fields(Io& io, Of<Io, Settled>& one) {
  io.choice(one.subject.kind, static_cast<size_t>(Subject::Kind::kLast) + 1);
  io(one.subject.id, one.upto);
  io.check(one.upto > 0);
}

std::string encode(const std::vector<Settled>& settled) {
  FieldWriter out;
  out.list(settled, kMostSettled);
  return out.take();
}

Result<std::vector<Settled>> decode_settled(std::string_view in) {
  FieldReader reader(in);
  std::vector<Settled> settled;
  reader.list(settled, kMostSettled);
  if (!reader.done()) return breach("malformed settled message");
  return settled;
}

}  // namespace herring::wire
