// The agreement of shrink() in simulated time, over links that delay, boards that are read at once, ranks that are
// killed and stopped at the worst instants, links that are cut: no two living ranks ever decide differently; and where
// ranks only die, all the others decide, and keep each other. Usage: agreement_test [trials [first seed]]

#include "engine/groups/agreement.h"

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace collectives;
using std::chrono::milliseconds;

constexpr int kEnd = 12'000;  // milliseconds of a trial

struct Message {
  int arrives;
  bool proof;  // the sender has ended
  Note note;
};

struct Rank {
  explicit Rank(int rank, int size) : agreement(rank, size), inbox(size), board_read(size), proof_at(size, -1) {}
  Agreement agreement;
  std::vector<std::deque<Message>> inbox;  // by sender
  std::vector<std::uint64_t> board_read;   // beats
  std::vector<int> proof_at;               // of the death of ranks whose board this one reads
  int joins = 0;                           // when
  double patience = 1;
  int stopped_until = 0;
  bool killed = false;
  bool joined = false;
};

enum class Faults {
  kDeaths,
  kAll,
  kCuts,  // no rank dies; one, not the lowest, receives only from some of the others, which all receive from each other
};

class Trial {
 public:
  Trial(unsigned seed, Faults faults) : random_(seed), seed_(seed), faults_(faults), size_(2 + pick(6)) {
    mapped_.assign(size_, std::vector<bool>(size_));
    cut_.assign(size_, std::vector<bool>(size_));
    // Ranks that only die are never so late that they count as silent.
    slow_ = pick(3) != 0 ? 30 : faults == Faults::kAll ? 400 : 100;
    const int shared = pick(size_ + 1);  // ranks of the first host
    for (int r = 0; r < size_; ++r) {
      ranks_.emplace_back(r, size_);
      ranks_[r].joins = pick(3) == 0 ? pick(faults == Faults::kAll ? 1500 : 500) : pick(20);
      // Ranks that soon give each other up compete for the lead.
      if (faults == Faults::kAll && pick(2) == 0) {
        ranks_[r].patience = 0.02 + 0.01 * pick(30);
      }
      for (int o = 0; o < r; ++o) {
        mapped_[r][o] = mapped_[o][r] = r < shared && o < shared;
        if (faults == Faults::kAll && !mapped_[r][o] && pick(12) == 0) {
          cut_[r][o] = cut_[o][r] = true;
        }
      }
    }
    eager_ = pick(2) == 0;
    kills_ = pick(size_);
    if (faults == Faults::kCuts) {
      eager_ = false;
      kills_ = 0;
      const int lonely = 1 + pick(size_ - 1);
      for (int o = 1; o < size_; ++o) {
        mapped_[lonely][o] = mapped_[o][lonely] = false;
        cut_[lonely][o] = cut_[o][lonely] = o != lonely && pick(2) == 0;
      }
    }
    stops_ = faults == Faults::kAll ? pick(3) : 0;
    if (faults == Faults::kAll && pick(6) == 0) {
      ranks_[pick(size_)].joins = kEnd;
    }
  }

  // Where all but one rank receive from each other, and are a majority, the lowest gets them together.
  void expect_largest_team() const {
    const Agreement& lowest = ranks_[0].agreement;
    expect(size_ < 3 || lowest.decided(), "the lowest rank has not decided", 0);
    expect(size_ < 3 || lowest.decision().ranks.count() >= size_ - 1, "more ranks were left out than need be", 0);
  }

  void run() {
    for (now_ = 1; now_ < kEnd; ++now_) {
      if (!eager_ && pick(700) == 0) {
        strike(pick(size_));
      }
      bool busy = false;
      for (int r = 0; r < size_; ++r) {
        Rank& rank = ranks_[r];
        if (!rank.killed && rank.stopped_until <= now_) {
          step(r);
        }
        busy = busy || (!rank.killed && rank.joins < kEnd && !rank.agreement.decided());
      }
      check();
      if (!busy) {
        break;
      }
    }
    if (faults_ == Faults::kCuts) {
      expect_largest_team();
    }
    if (faults_ == Faults::kDeaths) {
      for (int r = 0; r < size_; ++r) {
        expect(ranks_[r].killed || ranks_[r].agreement.decided(), "a rank has not decided", r);
        for (int o = 0; o < size_; ++o) {
          expect(ranks_[r].killed || ranks_[o].killed || ranks_[r].agreement.decision().ranks.has(o),
                 "a living rank was left out", o);
        }
      }
    }
  }

 private:
  int pick(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }

  Agreement::Time time() const { return Agreement::Time(milliseconds(1'000'000 + now_)); }

  void expect(bool holds, const char* what, int rank) const {
    if (!holds) {
      std::fprintf(stderr, "FAILED: seed %u%s, %d ranks, rank %d, %d ms: %s\n", seed_,
                   faults_ == Faults::kDeaths ? " (deaths)"
                   : faults_ == Faults::kCuts ? " (cuts)"
                                              : "",
                   size_, rank, now_, what);
      std::_Exit(1);
    }
  }

  void strike(int r) {
    if (ranks_[r].killed) {
      return;
    }
    if (stops_ > 0 && pick(2) == 0) {
      --stops_;
      ranks_[r].stopped_until = now_ + pick(6000);
    } else if (kills_ > 0) {
      --kills_;
      ranks_[r].killed = true;
      for (int o = 0; o < size_; ++o) {
        if (mapped_[r][o]) {
          ranks_[o].proof_at[r] = now_ + 1 + pick(10);
        } else if (!cut_[r][o]) {
          send(r, o, {0, true, Note(size_)});
        }
      }
    }
  }

  void send(int from, int to, Message message) {
    std::deque<Message>& inbox = ranks_[to].inbox[from];
    message.arrives = now_ + 1 + pick(slow_);
    if (!inbox.empty()) {
      message.arrives = std::max(message.arrives, inbox.back().arrives);
    }
    inbox.push_back(std::move(message));
  }

  void step(int r) {
    Rank& rank = ranks_[r];
    Agreement& agreement = rank.agreement;
    if (now_ < rank.joins) {
      return;
    }
    if (!rank.joined) {
      rank.joined = true;
      agreement.join(time(), rank.patience, static_cast<std::uint32_t>(100 + r), {});
    }
    const int first = pick(size_);
    for (int i = 0; i < size_; ++i) {
      const int o = (first + i) % size_;
      if (o == r) {
        continue;
      }
      std::deque<Message>& inbox = rank.inbox[o];
      while (!inbox.empty() && inbox.front().arrives <= now_) {
        if (inbox.front().proof) {
          agreement.mark_dead(o);
        } else {
          agreement.receive(o, inbox.front().note, time());
        }
        inbox.pop_front();
      }
      if (mapped_[r][o]) {
        const bool proof = rank.proof_at[o] >= 0 && rank.proof_at[o] <= now_;
        if (proof && pick(2) == 0) {
          agreement.mark_dead(o);
        }
        if (pick(3) == 0) {
          agreement.receive(o, ranks_[o].agreement.note(), time());
        }
        if (proof) {
          agreement.mark_dead(o);
        }
      }
    }
    const std::uint64_t before = agreement.note().proposing + agreement.note().accepted + agreement.note().promised;
    if (agreement.step(time())) {
      const bool news = before != agreement.note().proposing + agreement.note().accepted + agreement.note().promised ||
                        agreement.decided();
      // It may be struck when only some have received its note.
      const int until = eager_ && news && pick(4) == 0 ? pick(size_) : size_;
      for (int o = 0; o < until; ++o) {
        if (o != r && !mapped_[r][o] && !cut_[r][o]) {
          send(r, o, {0, false, agreement.note()});
        }
      }
      if (until < size_) {
        strike(r);
        if (!rank.killed && rank.stopped_until <= now_) {
          until_all(r, until);
        }
      }
    }
    if (agreement.failure() != Agreement::Failure::kNone) {
      expect(faults_ != Faults::kDeaths, "a rank gave up", r);
      agreement.withdraw();
      for (int o = 0; o < size_; ++o) {
        if (o != r && !mapped_[r][o] && !cut_[r][o]) {
          send(r, o, {0, false, agreement.note()});
        }
      }
      rank.joins = now_ + 1 + pick(3000);
      rank.joined = false;
      if (pick(2) == 0) {
        rank.joins = kEnd;
      }
    }
  }

  void until_all(int r, int from) {
    for (int o = from; o < size_; ++o) {
      if (o != r && !mapped_[r][o] && !cut_[r][o]) {
        send(r, o, {0, false, ranks_[r].agreement.note()});
      }
    }
  }

  void check() const {
    const Agreement* first = nullptr;
    for (int r = 0; r < size_; ++r) {
      if (ranks_[r].killed || !ranks_[r].agreement.decided()) {
        continue;
      }
      if (first == nullptr) {
        first = &ranks_[r].agreement;
      }
      expect(ranks_[r].agreement.decision().number == first->decision().number &&
                 ranks_[r].agreement.decision().ranks == first->decision().ranks,
             "two living ranks have decided differently", r);
    }
  }

  std::mt19937 random_;
  unsigned seed_;
  Faults faults_;
  int size_;
  int now_ = 0;
  int slow_;
  int kills_;
  int stops_;
  bool eager_;
  std::vector<Rank> ranks_;
  std::vector<std::vector<bool>> mapped_;
  std::vector<std::vector<bool>> cut_;
};

}  // namespace

int main(int argc, char** argv) {
  const unsigned trials = argc > 1 ? static_cast<unsigned>(std::atoi(argv[1])) : 400;
  const unsigned first = argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1;
  for (unsigned seed = first; seed < first + trials; ++seed) {
    constexpr Faults kKinds[] = {Faults::kDeaths, Faults::kAll, Faults::kAll, Faults::kCuts};
    Trial(seed, kKinds[seed % 4]).run();
  }
  std::printf("%u trials\n", trials);
}
