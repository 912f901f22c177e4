#include "engine/groups/board.h"

#include <algorithm>
#include <sstream>

#include "engine/engine.h"

namespace collectives {

std::vector<std::uint64_t> BoardLine::encode() const {
  const std::uint64_t flags = (made ? 1U : 0U) | (segment.room ? 2U : 0U) | (segment.heap ? 4U : 0U) | (quit ? 8U : 0U);
  std::vector<std::uint64_t> words{key.high, key.low, round, ready, std::uint64_t{number} << 8 | flags, segment.offset};
  static_assert(kBoardWords == 6);
  return words;
}

BoardLine BoardLine::decode(const std::vector<std::uint64_t>& words) {
  BoardLine line;
  line.key = {words[0], words[1]};
  line.round = words[2];
  line.ready = words[3];
  line.number = static_cast<std::uint32_t>(words[4] >> 8);
  line.made = (words[4] & 1) != 0;
  line.quit = (words[4] & 8) != 0;
  line.segment = {(words[4] & 2) != 0, (words[4] & 4) != 0, words[5]};
  return line;
}

MeetingKey Board::next_of(const MeetingKey& kind) const {
  const auto count = counts_.find({kind.high, kind.low});
  return {kind.high, kind.low + (count == counts_.end() ? 0 : count->second)};
}

bool Board::shares_memory(int world_rank) const {
  return engine_.memory() != nullptr && engine_.memory()->maps(world_rank);
}

// Whether a member may still have to read a line that was left.
bool Board::needed(const Own& own) const {
  return std::any_of(own.members.begin(), own.members.end(), [&](int w) {
    if (w == engine_.rank() || engine_.peers()[w].state != Peer::State::kThere) {
      return false;
    }
    // It was ready when this rank left, so a line that is not there any more was left as well.
    const std::optional<BoardLine> line = find(w, own.key);
    return line && !line->made;
  });
}

std::optional<int> Board::take(const MeetingKey& key, const std::vector<int>& members) {
  for (Own& own : own_) {
    if (own.left && !needed(own)) {
      own = {};
    }
  }
  const auto free = std::find_if(own_.begin(), own_.end(), [](const Own& own) { return own.members.empty(); });
  if (free == own_.end()) {
    return std::nullopt;
  }
  *free = {key, members, false};
  return static_cast<int>(free - own_.begin());
}

bool Board::has(const MeetingKey& key) const {
  return std::any_of(own_.begin(), own_.end(),
                     [&](const Own& own) { return !own.members.empty() && !own.left && own.key == key; });
}

void Board::show(int line, const BoardLine& content) {
  const std::vector<std::uint64_t> words = content.encode();
  if (engine_.memory() != nullptr) {
    engine_.memory()->board(engine_.rank(), line).publish(words);
  }
  std::ostringstream out;
  out << kMark << line << std::hex;
  for (const std::uint64_t word : words) {
    out << ' ' << word;
  }
  for (const int w : own_[line].members) {
    const Peer& peer = engine_.peers()[w];
    if (w != engine_.rank() && !shares_memory(w) && peer.link != nullptr && peer.state == Peer::State::kThere) {
      peer.link->send_control(out.str());
    }
  }
}

void Board::wipe(int line) {
  show(line, {});
  own_[line] = {};
}

void Board::leave(int line) { own_[line].left = true; }

std::optional<BoardLine> Board::find(int world_rank, const MeetingKey& key) const {
  const auto copy = copies_.find(world_rank);
  for (int i = 0; i < kBoardLines; ++i) {
    BoardLine line;
    if (shares_memory(world_rank)) {
      const auto [edition, words] = engine_.memory()->board(world_rank, i).read(kBoardWords);
      if (edition != 0) {
        line = BoardLine::decode(words);
      }
    } else if (copy != copies_.end()) {
      line = copy->second[i];
    }
    if (line.round != 0 && line.key == key) {
      return line;
    }
  }
  return std::nullopt;
}

void Board::receive(int world_rank, const std::string& text) {
  std::istringstream in(text.substr(sizeof kMark - 1));
  int line = -1;
  in >> line >> std::hex;
  std::vector<std::uint64_t> words;
  for (std::uint64_t word = 0; in >> word;) {
    words.push_back(word);
  }
  if (line >= 0 && line < kBoardLines && words.size() == kBoardWords) {
    copies_[world_rank][line] = BoardLine::decode(words);
  }
}

}  // namespace collectives
