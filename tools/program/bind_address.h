// Keeps TensorFlow's server from listening on every interface, which it does whatever address is
// named: this program has a bind() of its own, which the server's libraries find before the C
// library's.
#ifndef LATE_PHASE_TOOLS_PROGRAM_BIND_ADDRESS_H_
#define LATE_PHASE_TOOLS_PROGRAM_BIND_ADDRESS_H_

#include <string>

namespace late_phase {

// From now on, this process listens at the host's address only. Returns that address; empty if the
// host has none that is this machine's own, and then nothing changes.
std::string BindOnlyTo(const std::string& host);

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_BIND_ADDRESS_H_
