// What Linux says of a process in /proc.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace isthmus {

// A size in /proc/PID/status in bytes, such as "VmHWM" (the most resident memory so far) or
// "RssAnon" (resident memory that no file stands behind); 0: there is none.
inline uint64_t ProcStatusBytes(const std::string& name, const std::string& pid = "self") {
  std::ifstream file("/proc/" + pid + "/status");
  for (std::string word; file >> word;) {
    uint64_t kilobytes = 0;
    if (word == name + ":" && file >> kilobytes) return kilobytes << 10;
  }
  return 0;
}

}  // namespace isthmus
