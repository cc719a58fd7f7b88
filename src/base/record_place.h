// Where the flight record of this process's job is written, for error messages, such as
// "host1:/tmp/x.json". Any thread.
#pragma once

#include <string>

namespace herring {

void set_record_place(std::string place);
// Empty if there is no job, or if it writes no record.
std::string record_place();

}  // namespace herring
