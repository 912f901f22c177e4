#include "transports/transport.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <string>
#include <tuple>

namespace collectives {
namespace {

// A list, since communicators keep pointers to its entries.
std::list<Transport>& registry() {
  static std::list<Transport> all;
  return all;
}

}  // namespace

std::uint64_t next_arrival() {
  static std::atomic<std::uint64_t> next{0};  // engines of several ranks may be threads of one process
  return next.fetch_add(1, std::memory_order_relaxed);
}

std::string_view name(Reach reach) {
  return reach == Reach::kProcess ? "process" : reach == Reach::kHost ? "host" : "network";
}

RegisterTransport::RegisterTransport(const Transport& transport) {
  const auto order = [](const Transport& t) {
    return std::make_tuple(t.reach, t.cost.latency_us, -t.cost.bytes_per_us, t.name);
  };
  std::list<Transport>& all = registry();
  const auto later = [&](const Transport& other) { return order(transport) < order(other); };
  all.insert(std::find_if(all.begin(), all.end(), later), transport);
}

const std::list<Transport>& transports() { return registry(); }

const Transport& find_transport(Reach reach, std::string_view name) {
  const Transport* found = nullptr;
  for (const Transport& transport : registry()) {
    if (transport.reach == reach && (found == nullptr || transport.name == name)) {
      found = &transport;
    }
  }
  if (found == nullptr) {
    throw std::logic_error("no transport for ranks of one " + std::string(collectives::name(reach)));
  }
  return *found;
}

}  // namespace collectives
