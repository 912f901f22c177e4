#include "core/environment.h"

#include <charconv>
#include <cstdlib>
#include <system_error>

#include "core/error.h"

namespace collectives {

std::optional<std::string> environment(VariableName name) {
  const char* text = std::getenv(name.text());
  if (text == nullptr || *text == '\0') return std::nullopt;
  return text;
}

std::optional<std::int64_t> environment_integer(VariableName name, std::int64_t low, std::int64_t high) {
  const std::optional<std::string> text = environment(name);
  if (!text) return std::nullopt;
  std::int64_t value = 0;
  const char* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc{} || stop != end || value < low || value > high) {
    throw ArgumentError(std::string(name.text()) + " is \"" + *text + "\"; an integer from " + std::to_string(low) +
                        " to " + std::to_string(high) + " is accepted");
  }
  return value;
}

}  // namespace collectives
