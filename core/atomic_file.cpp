#include "rounding.h"

#include "atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <thread>

#include "file_paths.h"

namespace streamfuse {
namespace {

constexpr int kTries = 2000;  // to lock a file, a millisecond apart
constexpr size_t kMostHeld = size_t{1} << 16;
constexpr size_t kMostAtOnce = size_t{1} << 30;  // some systems refuse to write more than 2^31 - 1 bytes in one call

// Makes the new name durable: it is an entry of the folder. Not every file system can; the file is complete anyway.
void flush_folder(const std::string& path) {
  const int descriptor = ::open(folder_of(path).c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return;
  flush(descriptor);
  ::close(descriptor);
}

}  // namespace

int flush(int descriptor) {
#if defined(F_FULLFSYNC)
  if (fcntl(descriptor, F_FULLFSYNC) == 0) return 0;  // on Apple's systems fsync leaves data in the disk's cache
#endif
  return fsync(descriptor);
}

bool LockedFile::lock(const std::string& path, int flags, bool wait) {
  for (int tries = 1; !try_lock(path, flags); ++tries) {
    if (errno != EWOULDBLOCK || !wait || tries == kTries) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

bool LockedFile::try_lock(const std::string& path, int flags) {
  opened_ = false;
  if (process_ != getpid()) close();  // a forked process would share the lock of its parent
  while (true) {
    if (descriptor_ < 0) {
      descriptor_ = ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600);
      process_ = getpid();
      opened_ = true;
    }
    if (descriptor_ < 0) return false;
    int locked;
    do {
      locked = flock(descriptor_, LOCK_EX | LOCK_NB);
    } while (locked != 0 && errno == EINTR);
    if (locked != 0 && errno == EWOULDBLOCK) {
      if (opened_) close();  // so that the `lock` that succeeds says that it opened the file
      errno = EWOULDBLOCK;
      return false;
    }
    struct stat opened, named;
    if (fstat(descriptor_, &opened) == 0 && stat(path.c_str(), &named) == 0 && named.st_ino == opened.st_ino &&
        named.st_dev == opened.st_dev)
      return true;
    close();  // another holder has replaced or removed the file
  }
}

void LockedFile::unlock() {
  if (descriptor_ >= 0 && process_ == getpid()) flock(descriptor_, LOCK_UN);
}

void LockedFile::close() {
  unlock();  // a process that was forked meanwhile has the file open too, and would keep the lock
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

AtomicFile::AtomicFile(const std::string& path, bool wait) : path_(path), temporary_(path + std::string(kTemporary)) {
  held_.reserve(kMostHeld);
  struct stat named;
  if (stat(path_.c_str(), &named) == 0 && !S_ISREG(named.st_mode)) {  // a device would be replaced
    errno = S_ISDIR(named.st_mode) ? EISDIR : EINVAL;
    fail();
    return;
  }
  if (!open_temporary(wait) || ftruncate(file_.descriptor(), 0) != 0) fail();
}

// A file left behind by another process may be readable by others. Not every file system lets that be changed; there a
// new file takes its place, which may be that of a writer that waited for the lock.
bool AtomicFile::open_temporary(bool wait) {
  if (!file_.lock(temporary_, O_WRONLY | O_CREAT, wait)) return false;
  if (fchmod(file_.descriptor(), 0600) == 0) return true;
  if (std::remove(temporary_.c_str()) != 0) return false;
  file_.close();
  return file_.lock(temporary_, O_WRONLY | O_CREAT, wait);
}

AtomicFile::~AtomicFile() {
  if (file_.descriptor() >= 0) std::remove(temporary_.c_str());  // before the lock is released: then it is another's
}

void AtomicFile::fail() { error_ = error_ == 0 ? errno : error_; }

void AtomicFile::write(const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  if (held_.size() + size > kMostHeld) {
    put(held_.data(), held_.size());
    held_.clear();
  }
  if (size > kMostHeld)
    put(bytes, size);
  else
    held_.insert(held_.end(), bytes, bytes + size);
}

void AtomicFile::put(const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  while (ok() && size > 0) {
    const ssize_t written = ::write(file_.descriptor(), bytes, std::min(size, kMostAtOnce));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return fail();
    bytes += written;
    size -= static_cast<size_t>(written);
  }
}

bool AtomicFile::commit() {
  put(held_.data(), held_.size());
  if (!ok()) return false;
  if (flush(file_.descriptor()) != 0 || std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail();
    return false;
  }
  flush_folder(path_);
  file_.close();
  return true;
}

}  // namespace streamfuse
