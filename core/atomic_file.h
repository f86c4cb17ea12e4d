// Atomic replacement of a file: after a crash or a power cut its path has either the old or the new content.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace streamfuse {

// Writes to `path` + ".tmp", readable only by its owner, and renames it in `commit`. The temporary name is fixed, so
// that files left by killed processes are overwritten and do not pile up. Writers of one path wait for each other.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();  // removes the temporary file, unless it was committed
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  bool ok() const { return error_ == 0; }
  int error() const { return error_; }  // the first errno; later calls do nothing
  void write(const void* data, size_t size);
  // Flushes to the disk, renames over `path`, flushes the folder. False: `path` is unchanged.
  bool commit();

 private:
  void put(const void* data, size_t size);
  bool open();  // false: another writer renamed the file in between
  void fail();

  std::string path_, temporary_;
  std::vector<unsigned char> held_;  // buffers small parts
  int descriptor_ = -1, error_ = 0;
};

}  // namespace streamfuse
