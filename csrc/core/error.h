// The one error hierarchy. Each class is mapped one to one onto a Python exception of the same name.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace collectives {

// What is known about the place of a failure; -1 or empty means "not applicable".
struct ErrorContext {
  int rank = -1;
  int peer = -1;
  std::string collective;
  std::int64_t sequence = -1;
  std::string name;    // the caller's name of the tensor or call
  double age_s = -1;   // how long the collective had been pending
  std::string host{};  // of the peer
  int pid = -1;
  std::int64_t bytes_done = -1;
};

enum class ErrorKind : std::uint8_t { kNone, kGeneric, kMismatch, kPeer, kDeadline, kClosed, kForked, kBackend };

class CollectivesError : public std::runtime_error {
 public:
  CollectivesError(ErrorKind kind, const std::string& message, ErrorContext context)
      : std::runtime_error(message), kind_(kind), context_(std::move(context)) {}
  ErrorKind kind() const { return kind_; }
  const ErrorContext& context() const { return context_; }

 private:
  ErrorKind kind_;
  ErrorContext context_;
};

// A call that is wrong by itself (ValueError in Python); it consumes no sequence number.
class ArgumentError : public std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// A call with an argument of the wrong type (TypeError in Python).
class ArgumentTypeError : public std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

}  // namespace collectives
