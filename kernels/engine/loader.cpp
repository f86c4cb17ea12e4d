#include "loader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <thread>
#include <utility>

#include "error.h"
#include "platform.h"
#include "streamfuse_engine.h"

namespace streamfuse {
namespace {

using executorch::extension::MmapDataLoader;
using executorch::runtime::FreeableBuffer;
using executorch::runtime::Result;

void ask_for_large_pages(const void* data, size_t size) {
#if defined(MADV_HUGEPAGE)
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first = begin / page * page;
  (void)madvise(reinterpret_cast<void*>(first), begin + size - first, MADV_HUGEPAGE);
#else
  (void)data;
  (void)size;
#endif
}

MmapDataLoader opened(const std::string& path) {
  PlatformScope scope;
  Result<MmapDataLoader> loader = MmapDataLoader::from(path.c_str(), MmapDataLoader::MlockConfig::NoMlock);
  if (!loader.ok()) throw Failure(SF_BAD_PROGRAM, "cannot read " + path + ": " + scope.errors());
  return std::move(loader.get());
}

// In pieces, because some of these calls accept no more than about a megabyte.
void read_all(int file) {
  const off_t size = std::max<off_t>(lseek(file, 0, SEEK_END), 0);
#if defined(__APPLE__)
  constexpr off_t kPiece = off_t{256} << 10;
  for (off_t at = 0; at < size; at += kPiece) {
    radvisory piece = {at, static_cast<int>(kPiece)};
    (void)fcntl(file, F_RDADVISE, &piece);
  }
#else
#if defined(MADV_POPULATE_READ)  // Linux 5.14: returns an error for a truncated file, where reading would raise SIGBUS
  void* const map = size == 0 ? MAP_FAILED : mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_SHARED, file, 0);
  if (map != MAP_FAILED) {
    ask_for_large_pages(map, static_cast<size_t>(size));
    constexpr off_t kLarge = off_t{4} << 20;
    off_t at = 0;
    const auto read = [&] {
      const size_t bytes = static_cast<size_t>(std::min(kLarge, size - at));
      return madvise(static_cast<char*>(map) + at, bytes, MADV_POPULATE_READ) == 0;
    };
    while (at < size && read()) at += kLarge;
    munmap(map, static_cast<size_t>(size));
    if (at >= size) return;
  }
#endif
  constexpr off_t kPiece = off_t{256} << 10;
  for (off_t at = 0; at < size; at += kPiece) (void)posix_fadvise(file, at, kPiece, POSIX_FADV_WILLNEED);
#endif
}

}  // namespace

Loader::Loader(const std::string& path) : file_(opened(path)) {}

Result<FreeableBuffer> Loader::load(size_t offset, size_t size, const SegmentInfo& segment) const {
  Result<FreeableBuffer> part = file_.load(offset, size, segment);
  if (part.ok()) ask_for_large_pages(part->data(), size);
  return part;
}

// Runs in a thread, because reading blocks. The thread opens the file, so that nothing is left open if it cannot start.
void read_ahead(const std::string& path) try {
  std::thread([path] {
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return;
    read_all(file);
    close(file);
  }).detach();
} catch (const std::exception&) {
  // Without a thread, the first pass reads the file.
}

}  // namespace streamfuse
