// Ranks that are processes of one host: segments are memfds, passed by descriptor.

#include "transports/mapped/link.h"
#include "transports/mapped/mail.h"

namespace collectives {
namespace {

constexpr std::string_view kName = "shm";

std::unique_ptr<Link> over_domain(const Domain& domain, int peer) { return make_mapped_link(domain, peer, kName); }
std::unique_ptr<Link> mail_over_domain(const Domain& domain, int peer) { return make_mapped_mail(domain, peer, kName); }

const RegisterTransport registration({
    .name = kName,
    .description = "memory shared by processes of one host",
    .reach = Reach::kHost,
    .cost = kMappedCost,
    .memory = "memfd",
    .over_domain = over_domain,
    .mail_over_domain = mail_over_domain,
    .connect = nullptr,
});

}  // namespace
}  // namespace collectives
