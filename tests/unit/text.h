// What tests of all rooms ask of texts.
#pragma once

#include <string>
#include <string_view>

namespace herring {

inline bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace herring
