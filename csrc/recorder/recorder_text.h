// The contents of a recorder as JSON. Nothing here allocates or locks, so signal handlers may call it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "recorder/recorder.h"

namespace collectives {

// Buffers text and passes it on in larger pieces.
class TextWriter {
 public:
  using Put = void (*)(void* argument, const char* text, std::size_t bytes);
  TextWriter(Put put, void* argument) : put_(put), argument_(argument) {}
  ~TextWriter() { flush(); }
  TextWriter(const TextWriter&) = delete;
  TextWriter& operator=(const TextWriter&) = delete;

  TextWriter& text(std::string_view text);
  TextWriter& number(std::int64_t number);
  // Writes nanoseconds as decimal seconds.
  TextWriter& seconds(std::int64_t nanoseconds);
  // Writes a JSON string, with its quotes and escapes.
  TextWriter& quoted(std::string_view text);
  void flush();

 private:
  Put put_;
  void* argument_;
  std::size_t used_ = 0;
  char buffer_[4096];
};

// Writes the records as one JSON object (docs/recorder.md). why: the reason of the dump. stack: of Python, may be
// empty.
void write_json(const Recorder& recorder, std::string_view why, std::string_view stack, TextWriter& out);

// Writes the JSON to a file in the folder, named after rank, process and world, and a line about it to stderr. Where
// `folder` is empty, or no file can be made there, the JSON goes to stderr.
void dump(const Recorder& recorder, std::string_view folder, std::string_view why, std::string_view stack);

}  // namespace collectives
