// How a program's file comes into memory: mapped, in large pages where the system has them, and read ahead.
#pragma once

#include <string>

#include <executorch/extension/data_loader/mmap_data_loader.h>

namespace streamfuse {

// Maps parts of a file. A pass reads all weights, and the look-up of addresses in pages of 4 kB takes a tenth of its
// time and more. A file system that caches files in pages of 2 MB does so for what is not cached yet when such a map
// asks.
class Loader final : public executorch::runtime::DataLoader {
 public:
  explicit Loader(const std::string& path);  // throws Failure

  executorch::runtime::Result<executorch::runtime::FreeableBuffer> load(size_t offset, size_t size,
                                                                        const SegmentInfo& segment) const override;
  executorch::runtime::Result<size_t> size() const override { return file_.size(); }
  executorch::runtime::Error load_into(size_t offset, size_t size, const SegmentInfo& segment,
                                       void* buffer) const override {
    return file_.load_into(offset, size, segment, buffer);
  }

 private:
  executorch::extension::MmapDataLoader file_;
};

// Has the system read the whole file while the program is being opened; else the first pass would, page by page.
void read_ahead(const std::string& path);

}  // namespace streamfuse
