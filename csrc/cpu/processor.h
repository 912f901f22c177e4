// What processors differ in that decides how memory which other cores read and write is best used.
#pragma once

#include <cstdint>

namespace collectives {

struct Processor {
  bool takes_lines = false;      // lines that are read are written back, whatever is done with them; see cpu/take.h
  bool fills_by_string = false;  // a box is filled by a string instruction from 1 KiB on
  // Results of an all-reduce that take the place of its input, which has just been read, are written past the caches,
  // too, where they are too large for these.
  bool streams_in_place = true;
  // Who has just published waits a moment before it looks whether others have (docs/lab/waits-and-looks.md). The likely
  // reason is that an early look gets into the way of a core that is about to write the line.
  bool looks_late = false;
  // A header line, and a few lines of a box, are made this core's own as soon as the headers of the others have come,
  // so that the next stores to them need not wait for the cores that read them last: a message takes one flight in
  // place of two.
  bool owns_lines = false;
  // The lines of a box where cores share a cache, too.
  bool owns_boxes_near = false;
  // Up to how many bytes of a call: more lines come too late for the first look. A broadcast may have more, since only
  // one rank fills a box.
  std::int64_t most_owned = 0;
  std::int64_t most_owned_of_broadcast = 0;
  // And of one whose boxes are traded: then it is the header line alone.
  std::int64_t most_owned_of_traded = 0;
};

// This one, asked once.
const Processor& processor();

}  // namespace collectives
