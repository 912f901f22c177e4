// The environment variables of the library: one table, and the only functions that read variables in C++.
//
// docs/environment.md is written from the table by tools/make_environment_page.py, and the Python layer, which reads
// most of the variables, knows only those of the table. A new variable is an entry here and a reader.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace collectives {

// All in words, for the page. `accepted` and `fallback` are Markdown.
struct EnvironmentVariable {
  std::string_view name;
  std::string_view accepted;  // type and accepted values
  std::string_view fallback;  // what holds when the variable is not set, or is empty
  std::string_view meaning;   // one sentence without its full stop
  std::string_view reader;    // the file that reads it
};

inline constexpr std::string_view kLaunchReader = "python/collectives/_startup/environment.py";

inline constexpr EnvironmentVariable kEnvironmentVariables[] = {
    {"COLLECTIVES_RANK", "integer from 0 to size - 1", "from the [launcher](running.md); else 0 in a world of one",
     "The number of this process", kLaunchReader},
    {"COLLECTIVES_SIZE", "integer from 1 to 1048576", "from the [launcher](running.md); else 1",
     "How many processes the job has", kLaunchReader},
    {"COLLECTIVES_RENDEZVOUS", "`host:port`, `[address]:port` for IPv6",
     "from the [launcher](running.md), if it has a place for it; else none, needed when size > 1",
     "Where rank 0 listens and the others come to, the same text on all ranks", kLaunchReader},
    {"COLLECTIVES_TOKEN", "any text",
     "none; needed unless the rendezvous is on loopback, where any user of the machine may join without it",
     "Secret of the job, the same on all ranks: random, for example the output of `openssl rand -hex 32`",
     kLaunchReader},
    {"COLLECTIVES_TOKEN_FILE", "path of a file that nobody else may read", "none",
     "File with the secret of the job; `COLLECTIVES_TOKEN` wins over it", kLaunchReader},
    {"COLLECTIVES_TLS_CERT", "path of a PEM file", "none: no TLS",
     "Certificate of this rank, and its chain: the rendezvous then speaks TLS, which all ranks of a job must do or "
     "none",
     kLaunchReader},
    {"COLLECTIVES_TLS_KEY", "path of a PEM file that nobody else may read", "the file of `COLLECTIVES_TLS_CERT`",
     "Private key of that certificate, not encrypted", kLaunchReader},
    {"COLLECTIVES_TLS_CA", "path of a PEM file", "none; needed with `COLLECTIVES_TLS_CERT`",
     "Certificates of the authority that signed those of the ranks; nobody else is trusted", kLaunchReader},
    {"COLLECTIVES_SOCKET_IFNAME", "`eth,ib` (prefixes), `=eth0` (exact), `^docker`, `^=docker0` (all but these)",
     "all interfaces but loopback", "Interfaces over which data between hosts may go, as NCCL spells them",
     kLaunchReader},
    {"COLLECTIVES_TRANSPORT", "`auto`, `shm`, `tcp`, `nccl`, or another transport of `collectives info`", "`auto`",
     "What carries the data, the same on all ranks; `auto` is shared memory between ranks of a host and TCP between "
     "hosts, and for arrays on GPUs NCCL where every rank has a GPU of its own; `nccl` is the same, and an error where "
     "NCCL cannot carry arrays on GPUs",
     kLaunchReader},
    {"COLLECTIVES_TIMEOUT", "seconds > 0", "300 for starting, 600 for a collective",
     "How long ranks wait for each other", kLaunchReader},
    {"COLLECTIVES_START_TIMEOUT", "seconds > 0", "`COLLECTIVES_TIMEOUT`, or `timeout=` of `init`; else 300",
     "How long ranks wait for each other when the job starts, where that is to differ from the timeout of collectives",
     kLaunchReader},
    {"COLLECTIVES_LOG", "`error`, `warning`, `info` or `debug`",
     "what the program's `logging` says, else warnings, and a line of rank 0 about what has started the job",
     "From which level on the logger `collectives` writes to stderr; the line is not written with `error` and "
     "`warning`",
     kLaunchReader},
    {"COLLECTIVES_COMPARE_SHAPES", "`0` or `1`", "`1`",
     "Whether all_reduce, reduce and broadcast raise `MismatchError` where ranks pass arrays of as many elements and "
     "of different shapes, the same on all ranks",
     kLaunchReader},
    {"COLLECTIVES_SYMMETRIC_HEAP", "bytes, with K, M, G or T behind the number if you like", "`64G`",
     "Address space, not memory, that each rank reserves for `comm.empty`, the same on all ranks; smaller by itself "
     "where address space is limited (`ulimit -v`) and nothing is said here",
     kLaunchReader},
    {"COLLECTIVES_ALGORITHM",
     "collectives with ranges of bytes, lower end included: `all_reduce:0-4k=one_shot,4k-=ring;broadcast:0-=tree`",
     "none",
     "Algorithms that calls take where they leave the choice open, if these can be used for them, the same on all "
     "ranks",
     kLaunchReader},
    {"COLLECTIVES_NETWORK",
     "bits per second, with K, M, G or T behind the number, and if you like a latency, and bytes that pass at once "
     "after a pause: `25G`, `25G,20us`, `10G,20us,128KiB`",
     "the slowest of the hosts' interfaces, of each host the fastest, as far as they know their speed, else `10G`; "
     "`20us`; no burst",
     "What the choice of algorithms counts with between hosts: the rate of a host's port in each direction, the "
     "latency and the burst of a rate limit, the same on all ranks",
     kLaunchReader},
    {"COLLECTIVES_PROFILE", "path of a file that `collectives tune` has written", "none: built-in costs",
     "What the choice of algorithms counts with on machines of this kind, and [which it takes](using.md#algorithms) "
     "for some calls; `COLLECTIVES_ALGORITHM` wins over it. The contents are the same on all ranks",
     kLaunchReader},
    {"COLLECTIVES_RENDEZVOUS_FD", "number of a descriptor", "none",
     "Set by launchers for rank 0: an inherited socket that listens on the rendezvous already", kLaunchReader},
    {"COLLECTIVES_LAUNCHER_FD", "number of a descriptor", "none",
     "Set by launchers: an inherited file that says which ranks have ended, so that no other waits for them while the "
     "job starts",
     kLaunchReader},
    {"COLLECTIVES_NUM_THREADS", "1 to 1024", "as many as there are cores for it",
     "Threads of a reduction over replicas of one process (`collectives.cross_device_ops`), the caller among them; "
     "it does not change results",
     kLaunchReader},
    {"COLLECTIVES_RECORDER_DIR", "path of a folder, which is made where there is none", "none",
     "Where each rank writes what its recorder holds, after a failure and on SIGUSR2; without it no file is written, "
     "and "
     "SIGUSR2 writes to stderr",
     kLaunchReader},
    {"COLLECTIVES_SIGNALS", "`0` or `1`", "`1`",
     "Whether the library handles SIGUSR2 (dumps the recorder) and SIGRTMAX-7 (shows the Python stack to a rank that "
     "misses this one), where the program handles neither",
     kLaunchReader},
    {"COLLECTIVES_NCCL_LIB", "path of a libnccl.so.2",
     "the NCCL that the process has loaded, else that of the Python package `nvidia-nccl-cu13` or `-cu12`, else the "
     "system's",
     "Which NCCL is used", "csrc/nccl/library.cc"},
    {"COLLECTIVES_ISA", "`avx512`, `avx2` or `baseline`", "the best that the machine has",
     "Instruction set of the reducers, for tests and comparisons; all give the same bits", "csrc/reduce/reducer.cc"},
    {"COLLECTIVES_CUDA_LIB", "path of a file", "`libcollectives_cuda.so` beside `libcollectives_core.so`",
     "The library with the CUDA kernels; for tests and unusual installations", "csrc/device/library.cc"},
};

constexpr bool is_environment_variable(std::string_view name) {
  for (const EnvironmentVariable& variable : kEnvironmentVariables) {
    if (variable.name == name) return true;
  }
  return false;
}

// The name of a variable. One that is not in the table does not compile.
class VariableName {
 public:
  consteval VariableName(const char* name) : name_(name) {  // NOLINT(google-explicit-constructor): stands for a literal
    if (!is_environment_variable(name)) not_in_the_table_of_environment_variables();
  }
  const char* text() const { return name_; }

 private:
  static void not_in_the_table_of_environment_variables();  // not constexpr, so the compiler stops at the call
  const char* name_;
};

// The value of a variable; nothing when it is not set or is empty.
std::optional<std::string> environment(VariableName name);

// The value of a variable as a decimal integer from `low` to `high`. Throws ArgumentError for any other text.
std::optional<std::int64_t> environment_integer(VariableName name, std::int64_t low, std::int64_t high);

}  // namespace collectives
