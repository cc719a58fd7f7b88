// Texts about this process, for messages and files. Any thread.
#pragma once

#include <string>

namespace herring {

// Which Herring runs; empty if nobody has set it.
void set_version(std::string version);
std::string version();

// Where the flight record of this process's job is written, such as "host1:/tmp/x.json". Empty if
// there is no job, or if it writes no record.
void set_record_place(std::string place);
std::string record_place();

}  // namespace herring
