// A schedule: what one rank does in one collective, as data.
//
// An algorithm turns (rank, topology, problem) into a schedule and touches neither memory nor sockets. The executor
// runs the schedule, the verifier proves it right. Two families of steps exist:
//
//  * mapped steps (copy, reduce, with waits and signals) address bounce buffers and symmetric memory of ranks that this
//    rank has mapped. A bounce buffer is a ring of slots; the slot of chunk k is (base + k) % slots, where the base
//    advances by Schedule::chunks with every collective of the communicator. A flag is one word per (writer, flag id,
//    slot), and a signal of chunk k sets it to base + k + 1, so flags never need to be reset.
//  * message steps (send, receive, receive_reduce) work over any link. Messages between two ranks match in order. Sends
//    and receives are posted and go on in the background; await blocks until all receives posted so far are complete,
//    flush until all sends posted so far have left this rank's memory. The end of a schedule flushes.
//
// A schedule may end in two ways. `choose` awaits every header. Where every rank can be read (its array is one piece on
// large pages, and the kernel lets the others read it), the steps from Step::length on run, which read the private
// memory of other ranks straight into their own; elsewhere the steps before them run. All ranks see the same headers,
// so they choose alike.
//
// Counted loops keep schedules short: between loop and end_loop, iteration i adds i * stride to every offset and i to
// every chunk number. Loops do not nest.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace collectives {

enum class Region : std::uint8_t {
  kInput,       // the caller's input
  kOutput,      // the caller's output (the same memory as the input when in place)
  kScratch,     // private memory of this rank, Schedule::scratch_bytes long
  kBounce,      // a slot of the bounce buffer of `member` (mapped)
  kInline,      // the payload of the header line of `member`, Limits::inline_bytes long (mapped)
  kPeerInput,   // the input of `member`: symmetric (mapped), or private, for kRead
  kPeerOutput,  // the symmetric output of `member` (mapped)
};
inline constexpr std::size_t kRegions = static_cast<std::size_t>(Region::kPeerOutput) + 1;

inline constexpr std::uint16_t kNobody = 0xffff;

struct Operand {
  Region region = Region::kInput;
  std::uint16_t member = 0;
  std::int32_t chunk = 0;   // kBounce: selects the slot
  std::int64_t offset = 0;  // bytes
  std::int64_t stride = 0;  // bytes added per loop iteration
  bool own = false;         // a source in a bounce buffer that only this rank reads: see cpu/cache_lines.h
  // kBounce: the rank with which `member` swaps bounce buffers, see swapped().
  std::uint16_t partner = kNobody;

  bool swaps_buffers() const { return partner != kNobody; }
  // Whose bounce buffer it is, for a chunk counted as the slots are: from the first of the communicator on.
  int owner(std::int64_t chunk, std::int64_t slots) const {
    return swaps_buffers() && chunk / slots % 2 != 0 ? partner : member;
  }
};

enum class StepKind : std::uint8_t {
  kSync,  // only waits and signals
  kCopy,  // one source, any number of destinations
  kReduce,
  kSend,
  kReceive,
  kReceiveReduce,  // destination = op(received, source), or op(source, received): Step::own_first
  kAwait,
  kFlush,
  kLoop,  // length = number of iterations
  kEndLoop,
  kChoose,  // length = the step from which on ranks read each other
  kRead,    // one source, the private input of another rank, which the kernel reads; one destination
};

// Flag 0 is the header line: it carries the signature, so the first thing that a rank awaits from any other is
// compared. It is signalled once per collective, before anything else is.
inline constexpr std::uint8_t kHeaderFlag = 0;
inline constexpr int kFlags = 4;

struct FlagRef {
  std::uint8_t flag = kHeaderFlag;
  std::uint16_t member = 0;  // whose flag; the own rank for signals
  std::int32_t chunk = 0;
};

// A part of one of the pools of a schedule.
struct Range {
  std::uint32_t begin = 0;
  std::uint32_t count = 0;
};

struct Step {
  StepKind kind = StepKind::kSync;
  bool finish = false;     // the reduction is complete here: divide for avg
  bool own_first = false;  // receive_reduce: the order of its operands
  std::uint16_t peer = 0;  // message steps
  Range waits;             // before the step
  Range signals;           // after the step
  Range sources;
  Range destinations;
  std::int64_t length = 0;  // bytes; may be 0 (a message of no bytes is a token)
};

struct Schedule {
  std::vector<Step> steps;
  std::vector<Operand> operands;
  std::vector<FlagRef> flags;
  std::int64_t chunks = 0;  // how far this collective moves the slot base of the communicator
  std::int64_t scratch_bytes = 0;
  // Bytes from one slot to the next, 0: as they are laid out. The same on all ranks. See ScheduleBuilder::pack_slots().
  std::int64_t slot_pitch = 0;
  bool uses_links = false;     // has message steps
  bool chooses = false;        // has kChoose
  bool swaps_buffers = false;  // two ranks swap bounce buffers

  std::span<const FlagRef> waits(const Step& s) const { return {flags.data() + s.waits.begin, s.waits.count}; }
  std::span<const FlagRef> signals(const Step& s) const { return {flags.data() + s.signals.begin, s.signals.count}; }
  std::span<const Operand> sources(const Step& s) const { return {operands.data() + s.sources.begin, s.sources.count}; }
  std::span<const Operand> destinations(const Step& s) const {
    return {operands.data() + s.destinations.begin, s.destinations.count};
  }
};

// What bounce buffers, header lines and links can hold; the same on every rank of a communicator.
struct Limits {
  // Of ranks that share no cores, what goes through a slot at a time; in a crowd slots may be longer.
  static constexpr std::int64_t kSlotBytes = 512 << 10;
  std::int64_t slot_bytes = kSlotBytes;
  int slots = 4;
  std::int64_t inline_bytes = 40;
  std::int64_t segment_bytes = 512 << 10;  // pieces in which message algorithms pipeline
  std::int64_t most_stage_bytes = 128 << 10;
  // From so many bytes on, of what a rank gets of another one, ranks read each other's memory where they can; 0: never.
  std::int64_t read_bytes = 0;
  bool swap_buffers = true;  // see swapped()

  // Those of a communicator of `size` ranks. Slots grow with that, within reason, so that the part of a chunk that
  // belongs to one rank stays worth a meeting of all of them.
  static Limits of(int size);

  // What is put into a slot at a time where readers should begin early. An algorithm whose ranks are writers and
  // readers at once may fill a slot completely: the fewer meetings, the better.
  std::int64_t stage_bytes() const { return std::min(slot_bytes, most_stage_bytes); }

  // What two ranks exchange at a time over a link, where no third rank waits for a piece of it to pass on.
  std::int64_t exchange_bytes() const { return 2 * segment_bytes; }
};

// One piece of a longer range, for algorithms that work chunk by chunk. Inside a loop the piece of iteration i is the
// same shifted by i * stride bytes and i chunks.
struct Chunk {
  std::int32_t index = 0;
  std::int64_t offset = 0;  // bytes
  std::int64_t bytes = 0;
  std::int64_t stride = 0;
};

class ScheduleBuilder {
 public:
  ScheduleBuilder& copy(Operand source, const std::vector<Operand>& destinations, std::int64_t bytes);
  ScheduleBuilder& reduce(const std::vector<Operand>& sources, const std::vector<Operand>& destinations,
                          std::int64_t bytes, bool finish);
  ScheduleBuilder& send(int peer, Operand source, std::int64_t bytes);
  ScheduleBuilder& receive(int peer, Operand destination, std::int64_t bytes);
  ScheduleBuilder& receive_reduce(int peer, Operand source, Operand destination, std::int64_t bytes, bool finish,
                                  bool own_first = false);
  ScheduleBuilder& send_token(int peer);
  ScheduleBuilder& receive_token(int peer);
  ScheduleBuilder& await();
  ScheduleBuilder& flush();
  ScheduleBuilder& read(Operand source, Operand destination, std::int64_t bytes);
  // choose: what follows runs where some rank cannot be read, up to otherwise(), and what follows that where all can.
  // headers: of all other ranks.
  ScheduleBuilder& choose(const std::vector<FlagRef>& headers);
  ScheduleBuilder& otherwise();

  // Adds waits before, or signals after, the step appended last, or a step of their own when there is none to carry
  // them. wait() goes in front of the *next* step.
  ScheduleBuilder& wait(std::vector<FlagRef> flags);
  ScheduleBuilder& signal(int self, std::uint8_t flag, std::int32_t chunk);

  // Calls body for every chunk of [0, bytes), in order. The first `unrolled` chunks, the last `unrolled_last` and the
  // shorter one at the end get a call of their own; the equal ones between share one call inside a counted loop. At
  // least one chunk, even when bytes is 0. Advances Schedule::chunks.
  ScheduleBuilder& for_chunks(std::int64_t bytes, std::int64_t chunk_bytes, int unrolled,
                              const std::function<void(const Chunk&)>& body, int unrolled_last = 0);

  // The same for work in stages, as a pipeline: in round k each stage, in the order given, works on the chunk of `lag`
  // rounds before, chunk k - lag, so that what one stage waits for happens while the others are busy. The first rounds,
  // up to the one in which all stages have a chunk, are written out, and so are those in which a stage has no chunk or
  // the shorter one; the others share one body of a loop. Where chunks go through slots, each is in use for one round
  // more than the greatest lag: Limits::slots must be no fewer.
  struct Stage {
    int lag;
    std::function<void(const Chunk&)> work;
  };
  ScheduleBuilder& for_chunks_in_stages(std::int64_t bytes, std::int64_t chunk_bytes, const std::vector<Stage>& stages);

  // Lays the slots side by side, `bytes` each: a multiple of cache lines, no more than a slot has, no fewer than a
  // chunk. So hardware prefetchers run on from one chunk into the next. But a collective with another layout of slots
  // begins only when those before are complete everywhere. Has no effect in a schedule that is appended to another one
  // by over().
  ScheduleBuilder& pack_slots(std::int64_t bytes);

  // Reserves private memory and returns its offset.
  std::int64_t scratch(std::int64_t bytes);

  // Appends a schedule that was built for a subgroup: members[i] is the rank that it knows as i.
  ScheduleBuilder& over(const std::vector<int>& members, const Schedule& schedule);

  Schedule build();
  // The same for a schedule of message steps alone, which uses no slots.
  Schedule build_messages();

 private:
  Step& append(StepKind kind, std::int64_t bytes);
  Range put(const std::vector<Operand>& operands);
  Schedule schedule_;
  std::vector<FlagRef> pending_waits_;
  std::size_t choice_ = 0;        // the step that chooses
  std::size_t first_of_run_ = 0;  // steps before this one get no further signals
};

// The same flag of all ranks but one.
std::vector<FlagRef> flags_of_others(int me, int size, std::uint8_t flag, std::int32_t chunk);

// Operands of the usual regions.
Operand input(std::int64_t offset, std::int64_t stride = 0);
Operand output(std::int64_t offset, std::int64_t stride = 0);
Operand scratch_at(std::int64_t offset, std::int64_t stride = 0);
Operand bounce(int member, std::int32_t chunk, std::int64_t offset);
// The same operand, of which this rank is the only reader: it acquires the ownership of the cache lines that it reads.
Operand owned(Operand operand);
// The same operand, in the bounce buffers of two ranks that exchange equal amounts. Each time all slots have been used,
// the ranks swap bounce buffers, so a rank fills those slots that it read in the round before. Their lines are in its
// cache already, so each crosses from core to core once and not twice. The guard of slots covers both buffers: the
// chunk that had the slot before is complete on both ranks.
Operand swapped(Operand operand, int partner);
Operand inline_payload(int member);
Operand peer_input(int member, std::int64_t offset, std::int64_t stride = 0);
Operand peer_output(int member, std::int64_t offset, std::int64_t stride = 0);

// Splits `bytes` (a multiple of `element`) into `parts`. The borders of parts lie on multiples of 64 bytes where there
// are enough bytes, so that two ranks do not write one cache line.
struct Part {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
};
Part part_of(std::int64_t bytes, std::int64_t element, int parts, int index);

// The schedule as text, one step a line, for people and for tests.
std::string to_text(const Schedule& schedule);

}  // namespace collectives
