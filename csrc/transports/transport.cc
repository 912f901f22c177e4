#include "transports/transport.h"

#include "core/error.h"

namespace collectives {
namespace {

std::vector<Transport>& registry() {
  static std::vector<Transport> all;
  return all;
}

}  // namespace

RegisterTransport::RegisterTransport(const Transport& transport) { registry().push_back(transport); }

const std::vector<Transport>& transports() { return registry(); }

const Transport& find_transport(std::string_view name) {
  std::string names;
  for (const Transport& transport : registry()) {
    if (transport.name == name) {
      return transport;
    }
    names += (names.empty() ? "" : ", ") + std::string(transport.name);
  }
  throw ArgumentError("unknown transport \"" + std::string(name) + "\": accepted are " + names);
}

}  // namespace collectives
