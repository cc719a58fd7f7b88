// Which Herring runs, for messages and files. Any thread.
#pragma once

#include <string>

namespace herring {

void set_version(std::string version);
// Empty if nobody has set it.
std::string version();

}  // namespace herring
