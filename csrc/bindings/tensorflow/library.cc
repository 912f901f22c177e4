// Registers the ops when TensorFlow loads this library.

#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>

#include "bindings/tensorflow/in_flight_operations.h"
#include "bindings/tensorflow/kernel.h"
#include "bindings/tensorflow/renewal.h"
#include "engine/directory.h"

namespace collectives::tensorflow {
namespace {

std::string register_all() {
  std::string problem = load_api();
  if (problem.empty()) {
    try {
      register_reduce_replicas();
      register_start();
      register_wait();
    } catch (const std::exception& error) {
      problem = error.what();
    }
  }
  return problem;
}

const std::string g_problem = register_all();

}  // namespace
}  // namespace collectives::tensorflow

// Why the ops could not be registered; empty where they are. A library cannot report errors while it is being loaded.
extern "C" const char* collectives_tensorflow_problem() { return collectives::tensorflow::g_problem.c_str(); }

// How many collectives are in flight: for tests.
extern "C" int collectives_tensorflow_in_flight() {
  return static_cast<int>(collectives::tensorflow::InFlightOperations::instance().in_flight());
}

// For programs that use the communicator of a group directly, too. Writes an error text, as Renew does.
extern "C" void collectives_tensorflow_renew(std::int64_t number, char* problem, std::size_t bytes) {
  try {
    collectives::tensorflow::renewed(number, {});
  } catch (const std::exception& error) {
    std::snprintf(problem, bytes, "%s", error.what());
  }
}

// For the same programs: the communicator has raised a mismatch.
extern "C" void collectives_tensorflow_schedule_renewal(std::int64_t number) {
  try {
    collectives::tensorflow::schedule_renewal(number, {}, *collectives::communicator_by_number(number));
  } catch (const std::exception&) {
    return;  // the group is gone
  }
}

extern "C" void collectives_tensorflow_renew_by(collectives::tensorflow::Renew renew) {
  collectives::tensorflow::renew_by(renew);
}
