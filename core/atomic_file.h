// A file that replaces another in one step: after a crash or a power cut its path holds the old one or the new one.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace streamfuse {

// Writes to `path` + ".tmp", which only the owner may read, and gives it its name in `commit`. The temporary name is
// fixed, so that what a killed process left behind is written over and never piles up. Writers of one path take turns.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();  // removes the temporary file, unless it was committed
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  bool ok() const { return error_ == 0; }
  int error() const { return error_; }  // the first errno; nothing is done after it
  void write(const void* data, size_t size);
  // Flushes to the disk, takes the place of `path`, flushes the folder. False: `path` is as it was.
  bool commit();

 private:
  void put(const void* data, size_t size);
  bool open();  // false: another writer renamed the file in between
  void fail();

  std::string path_, temporary_;
  std::vector<unsigned char> held_;  // small parts, until they are worth a call of the system
  int descriptor_ = -1, error_ = 0;
};

}  // namespace streamfuse
