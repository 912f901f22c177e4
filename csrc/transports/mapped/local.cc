// Ranks that are threads of one process: segments are ordinary memory.

#include "transports/mapped/link.h"
#include "transports/mapped/mail.h"

namespace collectives {
namespace {

constexpr std::string_view kName = "local";

std::unique_ptr<Link> over_domain(const Domain& domain, int peer) { return make_mapped_link(domain, peer, kName); }
std::unique_ptr<Link> mail_over_domain(const Domain& domain, int peer) { return make_mapped_mail(domain, peer, kName); }

const RegisterTransport registration({
    .name = kName,
    .description = "memory of one process, ranks are threads",
    .reach = Reach::kProcess,
    .cost = kMappedCost,
    .memory = "host",
    .over_domain = over_domain,
    .mail_over_domain = mail_over_domain,
    .connect = nullptr,
});

}  // namespace
}  // namespace collectives
