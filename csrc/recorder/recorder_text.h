// What a recorder holds, as JSON. Nothing here allocates or locks, so a signal handler may call it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "recorder/recorder.h"

namespace collectives {

// Collects text and passes it on in larger pieces.
class TextWriter {
 public:
  using Put = void (*)(void* argument, const char* text, std::size_t bytes);
  TextWriter(Put put, void* argument) : put_(put), argument_(argument) {}
  ~TextWriter() { flush(); }
  TextWriter(const TextWriter&) = delete;
  TextWriter& operator=(const TextWriter&) = delete;

  TextWriter& text(std::string_view text);
  TextWriter& number(std::int64_t number);
  // Nanoseconds as seconds.
  TextWriter& seconds(std::int64_t nanoseconds);
  // With quotes around it.
  TextWriter& quoted(std::string_view text);
  void flush();

 private:
  Put put_;
  void* argument_;
  std::size_t used_ = 0;
  char buffer_[4096];
};

// One object on one line: see docs/recorder.md. why: what it is written for. stack: of Python, may be empty.
void write_json(const Recorder& recorder, std::string_view why, std::string_view stack, TextWriter& out);

// Writes it into a file of its own in the folder, whose name has the rank, the process and the world, and says so on
// stderr; to stderr itself when the folder is empty.
void dump(const Recorder& recorder, std::string_view folder, std::string_view why, std::string_view stack);

}  // namespace collectives
