// The archive and the files of CIFAR-10. The first byte says which is damaged: 'g' the archive, 't'
// the tar in it (as somebody who packs it again would), 'f' a file in the folder.
#include "models/images/cifar_images.h"
#include "tests/campaign/bytes/parser.h"
#include "tests/support/cifar_files.h"

namespace late_phase {
namespace {

const std::vector<NamedBytes>& Files() {
  static const auto* const files =
      new std::vector<NamedBytes>(CifarFiles(CifarSet::kCifar10, 1, 1, 10, 1));
  return *files;
}

const CifarImages& Whole() {
  static const CifarImages* const whole = [] {
    auto* images = new CifarImages;
    const std::string path = WriteFile("whole.tar.gz", Gzip(Tar(Files())));
    const std::string complaint = ReadCifar(CifarSet::kCifar10, path, images);
    Must(complaint.empty(), "the whole archive is read: " + complaint);
    return images;
  }();
  return *whole;
}

std::string WriteInput(char form, const std::string& rest) {
  if (form == 'g') return WriteFile("damaged.tar.gz", rest);
  if (form == 't') return WriteFile("damaged.tar.gz", Gzip(rest));
  std::string path;
  for (const NamedBytes& file : Files()) {
    const bool damaged = &file == &Files().front();
    path = WriteFile("folder/" + file.name, damaged ? rest : file.bytes);
  }
  return std::filesystem::path(path).parent_path().string();
}

void CheckImages(const LabelledImages& images) {
  Must(images.count > 0 && images.side == 32, "there are images of 32 x 32");
  Must(static_cast<int64_t>(images.labels.size()) == images.count, "a label per image");
  Must(static_cast<int64_t>(images.pixels.size()) == images.count * 3072, "3072 bytes per image");
  for (const int32_t label : images.labels) Must(label >= 0 && label < 10, "labels are classes");
}

}  // namespace

std::vector<std::string> GoodInputs() {
  const std::string tar = Tar(Files(), "cifar-10-batches-bin/");
  return {"g" + Gzip(tar), "t" + tar, "f" + Files().front().bytes};
}

void Parse(const std::string& bytes) {
  const char form = bytes.empty() ? 'f' : bytes[0];
  const std::string rest = bytes.empty() ? "" : bytes.substr(1);
  const std::string path = WriteInput(form, rest);
  CifarImages images;
  images.classes = 7;
  const std::string complaint = ReadCifar(CifarSet::kCifar10, path, &images);
  if (!complaint.empty()) {
    MustName(complaint, path);
    Must(images.classes == 7 && images.training.pixels.empty(), "a refusal leaves the images");
    ++outcomes.refused;
    return;
  }
  ++outcomes.accepted;
  Must(images.classes == 10, "ten classes");
  CheckImages(images.training);
  CheckImages(images.test);
  // An archive has a checksum; what is no gzip file is read as it is.
  if (form == 'g' && rest.compare(0, 2, "\x1f\x8b") == 0) {
    Must(images.training.pixels == Whole().training.pixels &&
             images.training.labels == Whole().training.labels &&
             images.test.pixels == Whole().test.pixels,
         "a damaged archive gives no other images");
  }
}

}  // namespace late_phase
