// Schedules of vector collectives: every rank has a part, of a length of its own, for some of the others.
//
// Through bounce buffers, chunk by chunk: a rank writes chunk k of all that it gives into its own bounce buffer,
// signals, and copies chunk k of what it gets out of the bounce buffers of the others. A slot is used again after two
// chunks: a rank that writes chunk k + 1 has seen the signal k of the ranks that read its chunk k - 1, and they
// signalled after they had read it. Two ranks that exchange equal amounts swap bounce buffers, see swapped().
//
// Where all parts have the same length, none is empty and there is no root, this is a pipeline: a rank writes chunk
// k + 1 before it waits for chunk k. Then a slot is used again after four chunks: a rank that writes chunk k + 4 has
// seen the signal k + 2 of its readers, which they gave after they had read chunk k.
//
// Where parts are long enough (Limits::read_bytes) ranks first see all headers. If all can be read, each reads its
// parts straight from the inputs of the others, which is one copy in place of two, and none returns before its own
// input has been read. Otherwise parts go through bounce buffers as above, and even the first chunk has a flag of its
// own.
//
// Every rank awaits every header, or a later signal of a rank that did, so no rank returns before all have entered.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "schedule/algorithm.h"

namespace collectives {

class Exchange {
 public:
  Exchange(const Problem& problem, const Topology& topology, const Limits& limits);

  // False when the slots are too small for one element to each reader.
  bool fits_slots() const { return chunk_bytes_ > 0; }
  // The exchange through bounce buffers. For every chunk of which this rank gets something, `get` adds the steps that
  // read it from place(from, c); the waits for the data are pending then.
  using Get = std::function<void(ScheduleBuilder& b, const Chunk& c)>;
  Schedule through_slots(const Get& get) const;
  // The same where what arrives is copied into the output.
  Schedule through_slots() const;
  // Where chunk c of what `from` gives to this rank lies, and how long it is.
  Operand place(int from, const Chunk& c) const { return place(from, me_, c); }
  std::int64_t piece(int from, const Chunk& c) const { return piece(from, me_, c); }

  // Sends what this rank has for `to`, a token where that is nothing: to `to` itself, or to a rank on the way.
  void send_to(ScheduleBuilder& b, int to) const { send_part(b, to, to); }
  void send_part(ScheduleBuilder& b, int peer, int to) const;
  // Receives the part of `from` into the output, or its token.
  void receive_from(ScheduleBuilder& b, int from) const;
  // So many bytes of a part, from `begin` on.
  void send_stretch(ScheduleBuilder& b, int peer, int to, std::int64_t begin, std::int64_t bytes) const;
  void receive_stretch(ScheduleBuilder& b, int from, std::int64_t begin, std::int64_t bytes) const;
  // All of it by messages, posted at once beginning with the next rank, long parts a few at a time.
  Schedule by_messages() const;
  // The own part, which does not travel.
  void keep(ScheduleBuilder& b) const;

  std::int64_t part(int from, int to) const { return problem_.part_bytes(from, to, size_); }
  // Of this rank, or of what it gets.
  std::int64_t input_offset(int from, int to) const {
    return from == me_ ? given_[static_cast<std::size_t>(to)].offset : gotten_[static_cast<std::size_t>(from)].offset;
  }
  std::int64_t output_offset(int from) const { return output_offsets_[from]; }
  std::int64_t segment() const { return segment_; }

 private:
  // Where a part lies: in the input of who gives it, and after how many parts for others in its bounce buffer.
  struct Place {
    std::int64_t offset = 0;
    std::int64_t readers = 0;
  };
  // Bytes of a chunk between two ranks, and of the chunk after it.
  std::int64_t piece(int from, int to, const Chunk& c) const;
  bool more(int from, int to, const Chunk& c) const { return part(from, to) > c.offset + chunk_bytes_; }
  std::int64_t region(int from, int to) const;
  Operand place(int from, int to, const Chunk& c) const;
  bool awaits_root_later(int reader) const;
  bool waits(int reader, int writer, const Chunk& c) const;
  // Whether the data of a chunk come with the header.
  bool with_header(const Chunk& c) const { return c.index == 0 && !chooses_; }
  void read(ScheduleBuilder& b) const;
  void publish(ScheduleBuilder& b, const Chunk& c) const;
  void exchange_chunks(ScheduleBuilder& b, const Get& get) const;
  // What this rank does with a chunk: it writes what others get, then waits for and reads what it gets itself.
  void give(ScheduleBuilder& b, const Chunk& c) const;
  void await_and_get(ScheduleBuilder& b, const Chunk& c, const Get& get) const;

  const Problem problem_;
  int me_;
  int size_;
  int root_;     // -1 where there is none
  bool shared_;  // all readers of a rank get the same
  bool even_;
  bool pipelined_;
  bool inlined_;
  bool swaps_;  // bounce buffers, see swapped()
  bool chooses_;
  std::int64_t longest_ = 0;
  std::int64_t chunk_bytes_ = 0;
  std::int64_t segment_;
  std::vector<Place> given_;   // the parts of this rank for each
  std::vector<Place> gotten_;  // the parts of each for this rank
  std::vector<std::int64_t> output_offsets_;
};

}  // namespace collectives
