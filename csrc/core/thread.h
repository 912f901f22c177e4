// Threads of the library.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace collectives {

// Starts a thread that blocks all signals: those are for the threads of the program, and Python expects them on its
// main thread. name: at most 15 characters. Throws std::system_error where the system has no thread left; `purpose`
// says what cannot be done without it ("carries on asynchronous calls").
std::thread start_thread(const char* name, const std::string& purpose, std::function<void()> body);

}  // namespace collectives
