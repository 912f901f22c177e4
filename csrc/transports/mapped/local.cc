// Ranks that are threads of one process: segments are ordinary memory.

#include "transports/mapped/link.h"
#include "transports/mapped/mail.h"

namespace collectives {
namespace {

std::unique_ptr<Link> over_domain(const Domain& domain, int peer) { return make_mapped_link(domain, peer, "local"); }
std::unique_ptr<Link> mail_over_domain(const Domain& domain, int peer) {
  return make_mapped_mail(domain, peer, "local");
}

const RegisterTransport registration({"local", "memory of one process, ranks are threads", "host", over_domain,
                                      mail_over_domain, nullptr});

}  // namespace
}  // namespace collectives
