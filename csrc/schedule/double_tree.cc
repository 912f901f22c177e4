#include "schedule/double_tree.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "schedule/placement.h"

namespace collectives {
namespace {

constexpr int kTrees = 2;
constexpr std::int64_t kLine = 64;
// Rounds from a send to its receive.
constexpr int kLag = 2;
// A chunk costs something of its own, about as long as so many bytes take on a link.
constexpr double kCostOfChunk = 4 << 10;
constexpr std::int64_t kShortestChunk = 8 << 10;

// This rank in one tree, which carries one part of the buffer.
struct Node {
  Part part;
  int parent = -1;
  std::vector<int> before;  // children whose sums come before what this rank has, in the order of reduction
  std::vector<int> after;   // children whose sums come behind it
  int depth = 0;
  std::int64_t sum = 0;  // scratch, where a sum has no place in the output

  std::size_t children() const { return before.size() + after.size(); }
  bool leaf() const { return children() == 0; }
  bool root() const { return parent < 0; }
};

// The trees over `hosts` hosts: from the number of a host to its position in a tree, and back.
class Positions {
 public:
  Positions(int hosts, int tree) : hosts_(hosts), tree_(tree) {}
  int of(int host) const {
    if (tree_ == 0) {
      return host + 1;
    }
    return hosts_ % 2 == 0 ? hosts_ - host : (host + 1) % hosts_ + 1;
  }
  int host_at(int position) const {
    if (tree_ == 0) {
      return position - 1;
    }
    return hosts_ % 2 == 0 ? hosts_ - position : (position - 2 + hosts_) % hosts_;
  }

 private:
  int hosts_;
  int tree_;
};

// With longer chunks there are fewer of them, but all hops take longer until the first is through.
std::int64_t segment_of(std::int64_t part, std::int64_t element, const Limits& limits) {
  const auto best = static_cast<std::int64_t>(std::sqrt(static_cast<double>(part) * kCostOfChunk));
  const std::int64_t bytes = std::min(std::max(best, kShortestChunk) / kLine * kLine, limits.segment_bytes);
  return std::max<std::int64_t>(bytes / element, 1) * element;
}

int hops_of(const Placement& placement, bool rooted) {
  const int in_tree = std::bit_width(static_cast<unsigned>(placement.hosts() - (rooted ? 1 : 0))) - 1;
  return in_tree + (rooted ? 1 : 0) + (placement.most() > 1 ? 1 : 0);
}

class DoubleTree {
 public:
  DoubleTree(const Problem& problem, const Topology& topology, const Limits& limits)
      : placement_(topology),
        me_(topology.rank),
        root_(has_root(problem.collective) ? problem.root : -1),
        up_(reduces(problem.collective)),
        down_(problem.collective != Collective::kReduce),
        hops_(hops_of(placement_, root_ >= 0)) {
    const int carriers = placement_.fewest();
    const std::int64_t bytes = problem.bytes();
    std::int64_t longest = 0;
    for (int share = 0; share < carriers; ++share) {
      for (int tree = 0; tree < kTrees; ++tree) {
        const Part part = part_of(bytes, problem.element(), kTrees * carriers, kTrees * share + tree);
        longest = std::max(longest, part.bytes);
        if (part.bytes > 0) {
          nodes_.push_back(node(share, tree));
          nodes_.back().part = part;
        }
      }
    }
    segment_ = segment_of(longest, problem.element(), limits);
    longest_ = longest;
  }

  Schedule build(std::int64_t bytes) {
    if (!up_) {
      tokens_up();
    }
    if (me_ == root_ && down_) {
      b_.copy(input(0), {output(0)}, bytes);
    }
    const int last_lag = kLag * hops_ * (up_ && down_ ? 2 : 1);
    std::int64_t shortest = std::numeric_limits<std::int64_t>::max();
    for (const Node& node : nodes_) {
      shortest = std::min(shortest, node.part.bytes);
    }
    make_slots();
    const std::int64_t rounds = (longest_ + segment_ - 1) / segment_ + last_lag;
    // Between the first rounds and the last ones all have a whole chunk of each tree to work on.
    const auto last = static_cast<int>(rounds - shortest / segment_);
    b_.for_chunks(rounds * segment_, segment_, last_lag, [&](const Chunk& c) { round(c); }, last);
    if (receiving_) {
      b_.await();
    }
    if (!down_) {
      tokens_down();
    }
    return b_.build_messages();
  }

 private:
  // A chunk of a part; no bytes: there is none in this round.
  struct Piece {
    std::int64_t offset = 0;
    std::int64_t stride = 0;
    std::int64_t bytes = 0;
  };

  int carrier(int host, int share) const { return placement_.ranks(host)[static_cast<std::size_t>(share)]; }

  // Hosts are counted from the one behind the root's, which is in no tree, or else from the first.
  Node node(int share, int tree) const {
    const int all = placement_.hosts();
    const bool rooted = root_ >= 0;
    const int in_trees = rooted ? all - 1 : all;
    const int first = rooted ? (placement_.host_of(root_) + 1) % all : 0;
    const Positions positions(in_trees, tree);
    const auto carrier_at = [&](int position) { return carrier((first + positions.host_at(position)) % all, share); };
    const int top = carrier_at(static_cast<int>(std::bit_floor(static_cast<unsigned>(in_trees))));
    Node node;
    if (rooted && placement_.host() == placement_.host_of(root_)) {
      if (me_ != root_) {
        node.parent = root_;
        node.depth = 1;
        return node;
      }
      add_local(node);
      node.after.push_back(top);
      return node;
    }
    const InOrderPlace place = in_order_place(positions.of((placement_.host() + all - first) % all), in_trees);
    const int here = carrier(placement_.host(), share);
    node.depth = place.depth + (rooted ? 1 : 0);
    if (me_ != here) {
      node.parent = here;
      ++node.depth;
      return node;
    }
    node.parent = place.parent > 0 ? carrier_at(place.parent) : root_;
    if (place.left > 0) {
      node.before.push_back(carrier_at(place.left));
    }
    add_local(node);
    if (place.right > 0) {
      node.after.push_back(carrier_at(place.right));
    }
    return node;
  }

  void add_local(Node& node) const {
    for (const int r : placement_.local()) {
      if (r != me_) {
        (r < me_ ? node.before : node.after).push_back(r);
      }
    }
  }

  // Whether a sum has its place in the output, where the result overwrites it. In reduce only the root has an output.
  bool sums_in_output(const Node& node) const { return down_ || node.root(); }
  // What comes from one child is reduced as it comes, and what comes from several at once, from scratch memory.
  bool collects(const Node& node) const { return up_ && node.children() > 1; }

  void make_slots() {
    for (Node& node : nodes_) {
      for (std::size_t i = 0; i < node.children() && collects(node); ++i) {
        slots_.push_back(b_.scratch(std::min(segment_, longest_)));
      }
      if (!node.leaf() && !sums_in_output(node)) {
        // Of the whole part. To use a piece again, this rank would have to flush what it has sent in the round before,
        // and two ranks that have each other as children would wait for each other.
        node.sum = b_.scratch(node.part.bytes);
      }
    }
  }

  template <typename Body>
  static void for_children(const Node& node, Body body) {
    std::for_each(node.before.begin(), node.before.end(), body);
    std::for_each(node.after.begin(), node.after.end(), body);
  }

  Piece piece(const Node& node, const Chunk& c, int lag) const {
    const std::int64_t at = c.offset - lag * segment_;
    const std::int64_t bytes = at < 0 ? 0 : std::clamp<std::int64_t>(node.part.bytes - at, 0, segment_);
    return {node.part.offset + at, c.stride, bytes};
  }
  // What goes up and down in a round. The deeper a node, the earlier it sends, and the later it gets the result.
  Piece upwards(const Node& node, const Chunk& c) const {
    return up_ ? piece(node, c, kLag * (hops_ - node.depth)) : Piece{};
  }
  Piece downwards(const Node& node, const Chunk& c) const {
    return down_ ? piece(node, c, kLag * ((up_ ? hops_ : 0) + node.depth)) : Piece{};
  }

  Operand sum(const Node& node, const Piece& p) const {
    return sums_in_output(node) ? output(p.offset, p.stride)
                                : scratch_at(node.sum + p.offset - node.part.offset, p.stride);
  }

  // Two ranks may be neighbours in several trees, so both sides go through them in one order: first what comes down.
  void round(const Chunk& c) {
    receive(c);
    reduce(c);
    for (const Node& node : nodes_) {
      if (const Piece p = downwards(node, c); p.bytes > 0) {
        const bool as_given = node.root() && !up_;
        for_children(node, [&](int child) {
          b_.send(child, as_given ? input(p.offset, p.stride) : output(p.offset, p.stride), p.bytes);
        });
      }
    }
    for (const Node& node : nodes_) {
      if (const Piece p = upwards(node, c); p.bytes > 0 && !node.root()) {
        b_.send(node.parent, node.leaf() ? input(p.offset, p.stride) : sum(node, p), p.bytes);
      }
    }
  }

  // Awaits only what is used in this round. Results of leaves come whenever they do.
  void receive(const Chunk& c) {
    bool used = false;
    for (const Node& node : nodes_) {
      if (const Piece p = downwards(node, c); p.bytes > 0 && !node.root()) {
        b_.receive(node.parent, output(p.offset, p.stride), p.bytes);
        receiving_ = true;
        used = used || !node.leaf();
      }
    }
    auto slot = slots_.begin();
    for (const Node& node : nodes_) {
      const Piece p = upwards(node, c);
      if (p.bytes == 0 || node.leaf()) {
        slot += collects(node) ? static_cast<std::ptrdiff_t>(node.children()) : 0;
        continue;
      }
      receiving_ = true;
      used = used || collects(node) || down_ || !node.root();
      if (collects(node)) {
        for_children(node, [&](int child) { b_.receive(child, scratch_at(*slot++), p.bytes); });
      } else {
        const bool own_first = node.before.empty();
        b_.receive_reduce(own_first ? node.after[0] : node.before[0], input(p.offset, p.stride), sum(node, p), p.bytes,
                          node.root(), own_first);
      }
    }
    if (used) {
      b_.await();
      receiving_ = false;
    }
  }

  void reduce(const Chunk& c) {
    auto slot = slots_.begin();
    for (const Node& node : nodes_) {
      if (!collects(node)) {
        continue;
      }
      std::vector<Operand> sources;
      for (std::size_t i = 0; i < node.before.size(); ++i) {
        sources.push_back(scratch_at(*slot++));
      }
      const Piece p = upwards(node, c);
      sources.push_back(input(p.offset, p.stride));
      for (std::size_t i = 0; i < node.after.size(); ++i) {
        sources.push_back(scratch_at(*slot++));
      }
      if (p.bytes > 0) {
        b_.reduce(sources, {sum(node, p)}, p.bytes, node.root());
      }
    }
  }

  // No rank returns before all have entered: those of one tree are all ranks.
  void tokens_up() {
    const Node& node = nodes_.front();
    for_children(node, [&](int child) { b_.receive_token(child); });
    if (!node.leaf()) {
      b_.await();
    }
    if (!node.root()) {
      b_.send_token(node.parent);
    }
  }
  void tokens_down() {
    const Node& node = nodes_.front();
    if (!node.root()) {
      b_.receive_token(node.parent).await();
    }
    for_children(node, [&](int child) { b_.send_token(child); });
  }

  Placement placement_;
  int me_;
  int root_;
  bool up_;
  bool down_;
  int hops_;  // from the deepest node to the root
  std::int64_t segment_ = 0;
  std::int64_t longest_ = 0;         // bytes of a part
  std::vector<Node> nodes_;          // by part
  std::vector<std::int64_t> slots_;  // scratch, for sums that are received
  ScheduleBuilder b_;
  bool receiving_ = false;  // there are receives that were not awaited
};

}  // namespace

InOrderPlace in_order_place(int position, int size) {
  const auto reach = [](int node) { return (node & -node) / 2; };  // how far its children are from it
  const auto right_of = [&](int node) {
    int far = reach(node);
    while (node + far > size) {
      far /= 2;
    }
    return far > 0 ? node + far : -1;
  };
  InOrderPlace place;
  int node = static_cast<int>(std::bit_floor(static_cast<unsigned>(size)));
  while (node != position) {
    place.parent = node;
    ++place.depth;
    node = position < node ? node - reach(node) : right_of(node);
  }
  place.left = reach(node) > 0 ? node - reach(node) : -1;
  place.right = right_of(node);
  return place;
}

Schedule double_tree(const Problem& problem, const Topology& topology, const Limits& limits) {
  return DoubleTree(problem, topology, limits).build(problem.bytes());
}

double cost_of_double_tree(const Problem& problem, const Topology& topology, const CostModel& model) {
  const Placement placement(topology);
  const auto bytes = static_cast<double>(problem.bytes());
  const int ways = problem.collective == Collective::kAllReduce ? 2 : 1;
  const int hops = hops_of(placement, has_root(problem.collective));
  const auto part = problem.bytes() / kTrees / placement.fewest();
  const auto segment = static_cast<double>(std::min(part, segment_of(part, problem.element(), Limits())));
  // A chunk passes all hops of both ways; all others follow it.
  return 2.0 * hops * (model.message.latency_us + kTrees * placement.fewest() * segment / model.message.bytes_per_us) +
         2 * model.mapped.latency_us + ways * bytes / model.message.bytes_per_us;
}

}  // namespace collectives
