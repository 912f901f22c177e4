// What is said when a communicator has failed: one paragraph on stderr, by one of the ranks that waited.
//
// The ranks that were waiting publish what they know (Report). The lowest of them writes which rank is missing from
// which collective, what that rank did last, and where its Python code is. Asking takes a moment, so a thread does it,
// and the error is raised meanwhile. It also writes the recorder into the folder where one is set.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/failure/failure_reports.h"
#include "engine/failure/report.h"

namespace collectives {

// What a rank knows when its communicator fails.
struct Failure {
  Report own;
  bool explains = false;  // else there is a recorder to be written, no more
  std::string suspect;    // "rank 2 (host a, pid 17)"
  std::string call;       // "all_reduce #17 'gradient' (4.0 MiB float32)"
  std::string last;       // what the suspect is known to have completed
  bool message = false;   // that call is one
  double waited_s = 0;
  int size = 0;
  int world_suspect = -1;
  int pid = -1;            // of the suspect's process
  int thread = -1;         // -1: not known
  std::string place;       // see stacks.h
  std::vector<int> there;  // ranks that may report
  std::vector<std::string> places;
};

class Explanation {
 public:
  Explanation(FailureReports& reports, Failure failure);
  ~Explanation();
  Explanation(const Explanation&) = delete;
  Explanation& operator=(const Explanation&) = delete;
  // Until all is said, some seconds at most.
  void wait();

 private:
  void run();
  void look_for_reports();
  // The rank that writes, -1: not known yet.
  int writer(bool time_is_up) const;
  bool all_reported() const;
  bool claim() const;
  std::string where(const std::string& why_not);
  std::string paragraph(const std::string& found) const;
  const Report* report(int rank) const;

  FailureReports& source_;
  Failure failure_;
  std::vector<std::optional<Report>> reports_;
  std::mutex mutex_;  // guards joining
  std::thread thread_;
};

}  // namespace collectives
