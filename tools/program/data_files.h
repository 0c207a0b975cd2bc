// The data of a command's runs, each file read once however many runs use it.
#ifndef LATE_PHASE_TOOLS_PROGRAM_DATA_FILES_H_
#define LATE_PHASE_TOOLS_PROGRAM_DATA_FILES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "models/images/cifar_images.h"
#include "models/text/byte_text.h"

namespace late_phase {

// Data stays in memory as long as this object or a run uses it. Throws UsageError with the
// reader's message.
class DataFiles {
 public:
  std::shared_ptr<const CifarImages> Cifar(CifarSet set, const std::string& path);
  std::shared_ptr<const ByteText> Text(const std::string& path, const TextLimits& limits);

  int64_t reads() const { return reads_; }

 private:
  std::map<std::tuple<CifarSet, std::string>, std::shared_ptr<const CifarImages>> images_;
  // By path and limits.
  std::map<std::tuple<std::string, int64_t, int64_t, int64_t>, std::shared_ptr<const ByteText>>
      texts_;
  int64_t reads_ = 0;
};

}  // namespace late_phase

#endif  // LATE_PHASE_TOOLS_PROGRAM_DATA_FILES_H_
