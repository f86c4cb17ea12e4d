#include "rounding.h"

#include "saved.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "atomic_file.h"
#include "error.h"

namespace streamfuse {
namespace {

// The file: these numbers, little-endian as in memory, then identity, tokens, cache, note, and the checksum of all
// before it.
struct Header {
  char magic[8];
  uint64_t version, capacity, identity_bytes, token_count, cached, cache_bytes, note_bytes;
};
constexpr char kMagic[8] = {'s', 'f', 's', 'e', 's', 's', 'n', '\n'};
constexpr uint64_t kVersion = 2;

struct Closer {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Closer>;

// FNV-1a over words; finds damage, not malice.
class Checksum {
 public:
  void add(const void* data, size_t size) {
    const auto* bytes = static_cast<const uint8_t*>(data);
    for (; size >= 8; size -= 8, bytes += 8) {
      uint64_t word;
      std::memcpy(&word, bytes, 8);
      mix(word);
    }
    for (; size > 0; --size) mix(*bytes++);
  }
  uint64_t value = 0xcbf29ce484222325u;

 private:
  void mix(uint64_t word) { value = (value ^ word) * 0x100000001b3u, value ^= value >> 29; }
};

const char* why(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "the disk is full";
    case ENOENT:
    case ENOTDIR:
      return "there is no such folder";
    case EACCES:
    case EPERM:
    case EROFS:
      return "it is not allowed there";
    default:
      return "the disk failed";
  }
}

[[noreturn]] void bad(const std::string& path, const std::string& why) { throw Failure(SF_BAD_FILE, path + " " + why); }

}  // namespace

void write(const Saved& saved, const std::string& path) {
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.capacity = static_cast<uint64_t>(saved.capacity);
  header.identity_bytes = saved.identity.size();
  header.token_count = saved.tokens.size();
  header.cached = static_cast<uint64_t>(saved.cached);
  header.cache_bytes = saved.cache.size();
  header.note_bytes = saved.note.size();
  AtomicFile file(path);
  Checksum sum;
  const auto put = [&](const void* data, size_t size) {
    sum.add(data, size);
    file.write(data, size);
  };
  put(&header, sizeof header);
  put(saved.identity.data(), saved.identity.size());
  put(saved.tokens.data(), saved.tokens.size() * sizeof(int64_t));
  put(saved.cache.data(), saved.cache.size());
  put(saved.note.data(), saved.note.size());
  file.write(&sum.value, sizeof sum.value);
  if (!file.commit()) bad(path, std::string("cannot be written: ") + why(file.error()));
}

Saved read(const std::string& path, const Spec& spec) {
  File file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) bad(path, "cannot be opened");
  Checksum sum;
  const auto get = [&](void* data, size_t size) {
    if (size > 0 && std::fread(data, 1, size, file.get()) != size) bad(path, "is cut off");
    sum.add(data, size);
  };
  Header header;
  get(&header, sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) bad(path, "is no saved session");
  if (header.version != kVersion)
    bad(path,
        "was written in form " + std::to_string(header.version) + ", this version reads " + std::to_string(kVersion));
  if (header.identity_bytes > kMostIdentity) bad(path, "is damaged");
  Saved saved;
  saved.identity.resize(header.identity_bytes);
  get(saved.identity.data(), saved.identity.size());
  if (saved.identity != spec.identity || header.capacity != static_cast<uint64_t>(spec.capacity))
    bad(path, "was saved with another bundle");
  if (header.token_count > header.capacity || header.cached > header.token_count) bad(path, "is damaged");
  // The file's own size bounds what is allocated.
  const long here = std::ftell(file.get());
  if (here < 0 || std::fseek(file.get(), 0, SEEK_END) != 0) bad(path, "cannot be read");
  const uint64_t size = static_cast<uint64_t>(std::ftell(file.get()));
  const uint64_t before = static_cast<uint64_t>(here) + header.token_count * sizeof(int64_t) + sizeof(uint64_t);
  if (size < before || header.cache_bytes > size - before || size - before - header.cache_bytes != header.note_bytes)
    bad(path, "is cut off or damaged");
  std::fseek(file.get(), here, SEEK_SET);
  saved.capacity = spec.capacity, saved.cached = static_cast<int64_t>(header.cached);
  saved.tokens.resize(header.token_count);
  get(saved.tokens.data(), saved.tokens.size() * sizeof(int64_t));
  saved.cache.resize(header.cache_bytes);
  get(saved.cache.data(), saved.cache.size());
  saved.note.resize(header.note_bytes);
  get(saved.note.data(), saved.note.size());
  const uint64_t expected = sum.value;
  uint64_t found;
  if (std::fread(&found, 1, sizeof found, file.get()) != sizeof found || found != expected) bad(path, "is damaged");
  for (const int64_t token : saved.tokens)
    if (token < 0 || token >= spec.vocab_size) bad(path, "is damaged");
  return saved;
}

}  // namespace streamfuse
