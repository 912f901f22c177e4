#include "engine/groups/note.h"

#include <sstream>

namespace collectives {
namespace {

constexpr std::size_t kNumbers = 10;
constexpr std::size_t kSets = 6;

std::vector<RankSet*> sets(Note& note) {
  return {&note.accepted_value.ranks,
          &note.proposal.ranks,
          &note.decision.ranks,
          &note.dead,
          &note.answering,
          &note.silent};
}

}  // namespace

std::size_t Note::words(int size) { return kNumbers + kSets * RankSet(size).words().size(); }

std::vector<std::uint64_t> Note::encode() const {
  const std::uint64_t flags = (joined ? 1U : 0U) | (segment.room ? 2U : 0U) | (segment.heap ? 4U : 0U);
  std::vector<std::uint64_t> words{
      beat,      flags,           number,         segment.offset, promised, accepted, accepted_value.number,
      proposing, proposal.number, decision.number};
  Note copy = *this;
  for (const RankSet* set : sets(copy)) {
    words.insert(words.end(), set->words().begin(), set->words().end());
  }
  return words;
}

std::optional<Note> Note::decode(const std::vector<std::uint64_t>& words, int size) {
  if (words.size() != Note::words(size) || words[1] > 7) {
    return std::nullopt;
  }
  Note note(size);
  note.beat = words[0];
  note.joined = (words[1] & 1) != 0;
  note.segment = {(words[1] & 2) != 0, (words[1] & 4) != 0, words[3]};
  note.number = static_cast<std::uint32_t>(words[2]);
  note.promised = words[4];
  note.accepted = words[5];
  note.accepted_value.number = static_cast<std::uint32_t>(words[6]);
  note.proposing = words[7];
  note.proposal.number = static_cast<std::uint32_t>(words[8]);
  note.decision.number = static_cast<std::uint32_t>(words[9]);
  auto from = words.begin() + kNumbers;
  for (RankSet* set : sets(note)) {
    for (std::uint64_t& word : set->words()) {
      word = *from++;
    }
    for (int r = size; r < static_cast<int>(set->words().size()) * 64; ++r) {
      if (set->has(r)) {
        return std::nullopt;
      }
    }
  }
  return note;
}

std::string Note::write(std::uint32_t communicator, const std::vector<std::uint64_t>& words) {
  std::ostringstream out;
  out << kMark << communicator << std::hex;
  for (const std::uint64_t word : words) {
    out << ' ' << word;
  }
  return out.str();
}

std::optional<Note::Message> Note::read(const std::string& text) {
  if (!text.starts_with(kMark)) {
    return std::nullopt;
  }
  std::istringstream in(text.substr(sizeof kMark - 1));
  Message message;
  in >> message.communicator >> std::hex;
  for (std::uint64_t word = 0; in >> word;) {
    message.words.push_back(word);
  }
  return message;
}

}  // namespace collectives
