#include "tools/program/data_files.h"

#include <utility>

#include "tools/program/command_line.h"

namespace late_phase {

std::shared_ptr<const CifarImages> DataFiles::Cifar(CifarSet set, const std::string& path) {
  std::shared_ptr<const CifarImages>& kept = images_[{set, path}];
  if (kept != nullptr) return kept;
  auto images = std::make_shared<CifarImages>();
  const std::string complaint = ReadCifar(set, path, images.get());
  if (!complaint.empty()) throw UsageError(complaint);
  ++reads_;
  return kept = std::move(images);
}

std::shared_ptr<const ByteText> DataFiles::Text(const std::string& path, const TextLimits& limits) {
  std::shared_ptr<const ByteText>& kept =
      texts_[{path, limits.train_characters, limits.validation_characters, limits.test_characters}];
  if (kept != nullptr) return kept;
  auto text = std::make_shared<ByteText>();
  const std::string complaint = text->Open(path, limits);
  if (!complaint.empty()) throw UsageError(complaint);
  ++reads_;
  return kept = std::move(text);
}

}  // namespace late_phase
