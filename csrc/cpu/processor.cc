#include "cpu/processor.h"

#include "cpu/cache_lines.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace collectives {
namespace {

// Zen 5. From this family on, AMD's cores write whole lines without fetching them if a string instruction does it, and
// an ownership upgrade of a line that others have read costs no more than any other transfer. Zen 1 to 4 are the
// families before it.
[[maybe_unused]] constexpr unsigned kZen5 = 0x1A;

Processor find() {
  Processor found;
#if defined(__x86_64__)
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid(0, &a, &b, &c, &d) != 0 && b == signature_AMD_ebx && c == signature_AMD_ecx &&
      d == signature_AMD_edx && __get_cpuid(1, &a, &b, &c, &d) != 0) {
    const unsigned family = ((a >> 8) & 0xF) + ((a >> 20) & 0xFF);
    const bool zen5 = family >= kZen5;
    found.owns_read_lines = !zen5;
    found.fills_by_string = zen5;
    found.streams_in_place = !zen5;
    found.looks_late = zen5;
    found.owns_next_lines = true;
    found.owns_next_near = !zen5;
    found.most_owned = (zen5 ? 1 : 4) * kLineBytes;
    found.most_owned_of_swapped = (zen5 ? 1 : 32) * kLineBytes;
    found.most_owned_of_broadcast = (zen5 ? 4 : 16) * kLineBytes;
  }
#endif
  return found;
}

}  // namespace

const Processor& processor() {
  static const Processor found = find();
  return found;
}

}  // namespace collectives
