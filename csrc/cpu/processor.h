// What processors differ in that decides how memory which other cores read and write is best used.
#pragma once

#include <cstdint>

namespace collectives {

struct Processor {
  // Whatever this rank reads as the only reader, it acquires ownership of the lines (cpu/cache_lines.h).
  bool owns_read_lines = false;
  // From 1 KiB on, a bounce buffer is filled by a string instruction.
  bool fills_by_string = false;
  // Where the result of an all-reduce replaces its input, which has just been read, and both are too large for the
  // caches, the result is written past them.
  bool streams_in_place = true;
  // A rank that has just published its header waits a moment before it looks whether others have
  // (docs/lab/waits-and-looks.md). The likely reason is that an early look gets into the way of a core that is about to
  // write the line.
  bool looks_late = false;
  // A header line, and a few lines of a bounce buffer, are prefetched for ownership as soon as the headers of the
  // others have come. The next stores to them then need not wait for the cores that read them last: a message crosses
  // between the cores once in place of twice.
  bool owns_next_lines = false;
  // The lines of a bounce buffer also where cores share a cache.
  bool owns_next_near = false;
  // Up to how many bytes of a call: more lines come too late for the first look. A broadcast may have more, since only
  // one rank fills a bounce buffer.
  std::int64_t most_owned = 0;
  std::int64_t most_owned_of_broadcast = 0;
  // The same where ranks swap bounce buffers: then only the header line is prefetched.
  std::int64_t most_owned_of_swapped = 0;
};

// This one, asked once.
const Processor& processor();

}  // namespace collectives
