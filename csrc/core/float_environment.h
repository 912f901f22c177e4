// The floating-point environment in which everything is reduced.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace collectives {

// While this exists, the calling thread rounds to nearest and keeps denormal numbers, whatever the program has set:
// ranks whose threads differ in that (torch.set_flush_denormal, libraries built with -ffast-math, fesetround) would
// come to different bits. The register is written only where it differs, since that takes longer than a short call.
class FloatEnvironment {
 public:
  FloatEnvironment() : before_(read()) {
    if ((before_ & kControl) != kOwn) [[unlikely]] {
      write((before_ & ~kControl) | kOwn);
    }
  }
  ~FloatEnvironment() {
    if ((before_ & kControl) != kOwn) [[unlikely]] {
      write(before_);
    }
  }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr std::uint64_t kControl = 0xffc0;  // all but the flags of exceptions that have been
  static constexpr std::uint64_t kOwn = 0x1f80;      // of MXCSR when a program starts: all exceptions masked
  static std::uint64_t read() { return _mm_getcsr(); }
  static void write(std::uint64_t value) { _mm_setcsr(static_cast<unsigned>(value)); }
#elif defined(__aarch64__)
  static constexpr std::uint64_t kControl = 0x07f79f07;  // of FPCR: rounding, flushing, default NaNs, traps
  static constexpr std::uint64_t kOwn = 0;
  static std::uint64_t read() {
    std::uint64_t value = 0;
    asm volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void write(std::uint64_t value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#else
  static constexpr std::uint64_t kControl = 0;
  static constexpr std::uint64_t kOwn = 0;
  static std::uint64_t read() { return 0; }
  static void write(std::uint64_t /*value*/) {}
#endif

  std::uint64_t before_;
};

}  // namespace collectives
