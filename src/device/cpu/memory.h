// How much memory this process can still get: what the kernel says is available (page cache counts as free), and no more
// than what the control groups that hold the process leave.
#pragma once

#include <cstdint>
#include <string>

namespace winnow::device {

// Bytes; `root` stands before /proc and /sys (tests). What cannot be read sets no limit.
// Sources: Linux Documentation/filesystems/proc.rst (MemAvailable), Documentation/admin-guide/cgroup-v2.rst (memory.max, memory.current,
// memory.stat).
int64_t available_memory(const std::string& root = {});

}  // namespace winnow::device
