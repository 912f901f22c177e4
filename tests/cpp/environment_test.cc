// The reader of environment variables: what is set, what is not, and the errors of integers.

#include "core/environment.h"

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <set>
#include <string>

#include "core/error.h"

namespace {

using namespace collectives;

int g_failures = 0;

void check(bool ok, const std::string& what) {
  if (!ok) {
    std::fprintf(stderr, "FAILED: %s\n", what.c_str());
    ++g_failures;
  }
}

static_assert(is_environment_variable("COLLECTIVES_SIZE"));
static_assert(!is_environment_variable("COLLECTIVES_SIZ"));
static_assert(!is_environment_variable(""));

void set(const char* value) { setenv("COLLECTIVES_SIZE", value, 1); }

std::optional<std::int64_t> size() { return environment_integer("COLLECTIVES_SIZE", 1, 64); }

void test_text() {
  unsetenv("COLLECTIVES_SIZE");
  check(!environment("COLLECTIVES_SIZE"), "a variable that is not set has a value");
  set("");
  check(!environment("COLLECTIVES_SIZE"), "an empty variable has a value");
  set(" 7 x");
  check(environment("COLLECTIVES_SIZE") == " 7 x", "the value is not what was set");
}

void test_integers() {
  unsetenv("COLLECTIVES_SIZE");
  check(!size(), "an integer that is not set has a value");
  set("");
  check(!size(), "an empty integer has a value");
  for (const std::int64_t value : {1, 7, 64}) {
    set(std::to_string(value).c_str());
    check(size() == value, std::to_string(value) + " is not read");
  }
  for (const char* text : {"0", "65", "-1", "x", "7x", " 7", "7 ", "+7", "1.0", "0x7", "99999999999999999999"}) {
    set(text);
    std::string message = "no error";
    try {
      size();
    } catch (const ArgumentError& error) {
      message = error.what();
    }
    const std::string wanted = "COLLECTIVES_SIZE is \"" + std::string(text) + "\"; an integer from 1 to 64 is accepted";
    check(message == wanted, "\"" + std::string(text) + "\" gives: " + message);
  }
}

void test_table() {
  std::set<std::string> names;
  for (const EnvironmentVariable& variable : kEnvironmentVariables) {
    const std::string name(variable.name);
    check(name.starts_with("COLLECTIVES_"), name + " has another prefix");
    check(names.insert(name).second, name + " is there twice");
    check(!variable.meaning.empty() && !variable.meaning.ends_with("."), name + ": one sentence without its full stop");
    for (const std::string_view text : {variable.accepted, variable.fallback, variable.meaning, variable.reader}) {
      check(!text.empty() && text.find_first_of("|\n") == std::string_view::npos,
            name + " breaks the table of the page");
    }
  }
}

}  // namespace

int main() {
  test_text();
  test_integers();
  test_table();
  return g_failures == 0 ? 0 : 1;
}
