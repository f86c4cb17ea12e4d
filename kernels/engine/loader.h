// Loads a program's file: memory-mapped, with large pages if the system supports them, and read ahead.
#pragma once

#include <string>

#include <executorch/extension/data_loader/mmap_data_loader.h>

namespace streamfuse {

// Maps parts of a file. A pass reads all weights, and address translation with pages of 4 kB takes a tenth of its time
// or more. A file system with large folios caches uncached parts of a file in pages of 2 MB if the mapping requests it.
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

// Makes the system read the whole file while the program is being opened; otherwise the first pass reads it page by
// page.
void read_ahead(const std::string& path);

}  // namespace streamfuse
