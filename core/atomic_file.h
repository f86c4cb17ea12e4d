// Files that several processes may write: a locked file, and atomic replacement, after which the path has either the
// old or the new content, also after a crash or a power cut.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace streamfuse {

// A file that is readable by its owner only, and that one process or object at a time can lock. On a file system
// without locks, the caller must ensure that there is one writer.
class LockedFile {
 public:
  LockedFile() = default;
  ~LockedFile() { close(); }
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;

  // Opens the file, unless this process has it open, and locks it. If the path names another file by then, because
  // another process has replaced it, that file is opened and locked instead. Returns false and sets errno if it
  // cannot be opened, or to EWOULDBLOCK if another process or object holds the lock: if `wait`, for longer than two
  // seconds, since one that was suspended may hold it for ever.
  bool lock(const std::string& path, int flags, bool wait = true);
  // A process that was forked meanwhile shares the lock: it ends with these calls of its parent, not with its own.
  void unlock();
  void close();
  int descriptor() const { return descriptor_; }  // -1: closed
  bool opened() const { return opened_; }         // whether the last `lock` opened it

 private:
  bool try_lock(const std::string& path, int flags);

  int descriptor_ = -1;
  int process_ = -1;  // that opened it
  bool opened_ = false;
};

// The temporary file of FILE is FILE..tmp. No adapter's name begins with a dot, so none of its files has such a name.
constexpr std::string_view kTemporary = "..tmp";

// Flushes an open file to the disk itself. 0, or -1 with errno.
int flush(int descriptor);

// Writes to `path` + kTemporary, readable only by its owner, and renames it in `commit`. The temporary name is fixed,
// so that files left by killed processes are overwritten and do not pile up. A writer waits at most two seconds for
// another one of its path, and not at all unless `wait`; then its error is EWOULDBLOCK.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path, bool wait = true);
  ~AtomicFile();  // removes the temporary file, unless it was committed
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  bool ok() const { return error_ == 0; }
  int error() const { return error_; }  // the first errno; later calls do nothing
  void write(const void* data, size_t size);
  // Flushes to the disk, renames over `path`, flushes the folder. False: `path` is unchanged.
  bool commit();

 private:
  bool open_temporary(bool wait);
  void put(const void* data, size_t size);
  void fail();

  std::string path_, temporary_;
  std::vector<unsigned char> held_;  // buffers small parts
  LockedFile file_;
  int error_ = 0;
};

}  // namespace streamfuse
