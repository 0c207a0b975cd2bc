#include "tools/program/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string_view>

namespace late_phase {
namespace {

struct Ending {
  std::string text;
  int status;  // -1: 128 + the signal
};

// A signal may arrive at any moment and on any thread: what its handler reads is never changed,
// only replaced, and never freed.
std::atomic<const Ending*> ending{nullptr};
std::atomic<const std::string*> acknowledgement{nullptr};  // of FinishFirst; null: end at once
std::atomic<int> interrupted{0};                           // the first signal
std::atomic<int> presses{0};                               // of Ctrl-C

// Safe in a signal handler. A terminal may show a progress line, with the "^C" in it.
void Say(const std::string& text) {
  const std::string_view clear = isatty(STDERR_FILENO) ? "\r\033[K" : "";
  for (const std::string_view part : {clear, std::string_view(text)}) {
    if (write(STDERR_FILENO, part.data(), part.size()) < 0) return;
  }
}

[[noreturn]] void EndNow(int status) {
  const Ending* last = ending.load();
  Say(last->text);
  _exit(status >= 0 ? status : last->status >= 0 ? last->status : 128 + interrupted.load());
}

void OnSignal(int signal) {
  int none = 0;
  const bool first = interrupted.compare_exchange_strong(none, signal);
  const bool insists = signal == SIGINT && presses.fetch_add(1) > 0;
  const std::string* text = acknowledgement.load();
  if (text == nullptr) EndNow(-1);
  if (insists) EndNow(128 + SIGINT);
  if (first) Say(*text);
}

}  // namespace

void EndOnSignals(const std::string& command) {
  SetEnding(command + ": stopped; no results were written", -1);
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigaddset(&action.sa_mask, SIGINT);
  sigaddset(&action.sa_mask, SIGTERM);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void SetEnding(const std::string& text, int status) { ending = new Ending{text + "\n", status}; }

FinishFirst::FinishFirst(const std::string& text) : exceptions_(std::uncaught_exceptions()) {
  acknowledgement = new std::string(text + "\n");
}

FinishFirst::~FinishFirst() {
  acknowledgement = nullptr;
  if (!Interrupted() || std::uncaught_exceptions() > exceptions_) return;
  std::fflush(nullptr);
  EndNow(-1);
}

void EndAsInterrupted() {
  std::fflush(nullptr);
  EndNow(-1);
}

bool Interrupted() { return interrupted.load() != 0; }

}  // namespace late_phase
