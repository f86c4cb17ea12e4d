#include "rounding.h"

#include "atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>

namespace streamfuse {
namespace {

constexpr size_t kMostHeld = size_t{1} << 16;
constexpr size_t kMostAtOnce = size_t{1} << 30;  // some systems refuse to write more than 2^31 - 1 bytes in one call

int flush(int descriptor) {
#if defined(F_FULLFSYNC)
  if (fcntl(descriptor, F_FULLFSYNC) == 0) return 0;  // on Apple's systems fsync leaves data in the disk's cache
#endif
  return fsync(descriptor);
}

// Makes the new name durable: it is an entry of the folder. Not every file system can; the file is complete anyway.
void flush_folder(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return;
  flush(descriptor);
  close(descriptor);
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path) : path_(path), temporary_(path + ".tmp") {
  held_.reserve(kMostHeld);
  while (!open()) {
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  std::remove(temporary_.c_str());  // before the lock is released: afterwards it may be another writer's
  close(descriptor_);
}

bool AtomicFile::open() {
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (descriptor_ < 0) {
    fail();
    return true;
  }
  int locked;
  do {
    locked = flock(descriptor_, LOCK_EX);
  } while (locked != 0 && errno == EINTR);  // without locks in the file system, the caller must ensure one writer
  struct stat opened, named;
  if (fstat(descriptor_, &opened) != 0) {
    fail();
    return true;
  }
  if (stat(temporary_.c_str(), &named) != 0 || named.st_ino != opened.st_ino || named.st_dev != opened.st_dev) {
    close(descriptor_);
    descriptor_ = -1;
    return false;
  }
  // A file left behind by another process may have been readable by others.
  if (ftruncate(descriptor_, 0) != 0 || fchmod(descriptor_, 0600) != 0) fail();
  return true;
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
    const ssize_t written = ::write(descriptor_, bytes, std::min(size, kMostAtOnce));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return fail();
    bytes += written;
    size -= static_cast<size_t>(written);
  }
}

bool AtomicFile::commit() {
  put(held_.data(), held_.size());
  if (!ok()) return false;
  if (flush(descriptor_) != 0 || std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail();
    return false;
  }
  flush_folder(path_);
  close(descriptor_);
  descriptor_ = -1;
  return true;
}

}  // namespace streamfuse
