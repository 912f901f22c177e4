// Ranks that are processes of one host: segments are memfds, passed by descriptor.

#include "transports/mapped/link.h"
#include "transports/mapped/mail.h"

namespace collectives {
namespace {

std::unique_ptr<Link> over_domain(const Domain& domain, int peer) { return make_mapped_link(domain, peer, "shm"); }
std::unique_ptr<Link> mail_over_domain(const Domain& domain, int peer) { return make_mapped_mail(domain, peer, "shm"); }

const RegisterTransport registration({"shm", "memory shared by processes of one host", "memfd", over_domain,
                                      mail_over_domain, nullptr});

}  // namespace
}  // namespace collectives
