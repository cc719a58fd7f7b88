#include "base/fields.h"

namespace herring {

std::string printable(std::string text, Lines lines) {
  for (char& c : text) {
    const bool breaks = lines == Lines::kMany && (c == '\n' || c == '\t');
    if ((static_cast<unsigned char>(c) < 0x20 && !breaks) || c == 0x7f) c = ' ';
  }
  return text;
}

}  // namespace herring
