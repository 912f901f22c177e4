// Where the Python code of a rank is, as others see it, and the signal handlers of this process.
//
// Each process has a page of memory that the others on its machine find through /proc. A rank that wants to know where
// another one is asks in the page of its process and sends the thread a signal; its handler, which needs neither the
// interpreter nor its lock, has the interpreter's faulthandler write the stack of that thread into the page.
#pragma once

#include <string>
#include <string_view>

namespace collectives {

// How the page of a process is found: "machine descriptor nonce", empty when it has none.
using StackPlace = std::string;

// The page of this process, made by the first call; machine: names the machine. The descriptor, -1 where there is none.
int open_stack_page(const std::string& machine);
StackPlace own_stack_place();
// Whether both pages are on one machine.
bool same_machine(const StackPlace& a, const StackPlace& b);

// The signal that asks for a stack, and whether a signal has no handler.
int stack_signal();
bool signal_is_free(int signal);
// Puts our handler for stack_signal() in front of that of faulthandler, which writes to the page.
void take_over_stack_signal();
// Has SIGUSR2 dump all recorders of this process.
void dump_on_signal();
// Where dumps go; empty: no file after a failure, stderr after a signal.
void set_recorder_folder(const std::string& folder);
std::string_view recorder_folder();

// What there is to say about a thread of a process: "it is alive, and its main thread is at:" and the lines of the
// stack, or why there is no stack. Takes `patience_s` at most.
std::string look_at_thread(const StackPlace& place, int pid, int thread, double patience_s);

// Of the calling thread, as the kernel numbers it.
int thread_number();

}  // namespace collectives
