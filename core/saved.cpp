#include "rounding.h"

#include "saved.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

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
constexpr uint64_t kVersion = 2, kPartBytes = uint64_t{1} << 18;  // kPartBytes: of the cache, while it is checked

// FNV-1a over the words of each part, the last bytes of a part one by one; finds damage, not malice.
class Checksum {
 public:
  void add(const void* data, size_t size) {
    const auto* bytes = static_cast<const uint8_t*>(data);
    for (; size > 0 && held_ > 0; --size) hold(*bytes++);
    for (; size >= sizeof word_; size -= sizeof word_, bytes += sizeof word_) {
      uint64_t word;
      std::memcpy(&word, bytes, sizeof word);
      mix(word);
    }
    for (; size > 0; --size) hold(*bytes++);
  }
  uint64_t end_part() {
    for (size_t i = 0; i < held_; ++i) mix(word_[i]);
    held_ = 0;
    return value_;
  }

 private:
  void hold(uint8_t byte) {
    word_[held_++] = byte;
    if (held_ < sizeof word_) return;
    held_ = 0;
    add(word_, sizeof word_);
  }
  void mix(uint64_t word) { value_ = (value_ ^ word) * 0x100000001b3u, value_ ^= value_ >> 29; }

  uint64_t value_ = 0xcbf29ce484222325u;
  uint8_t word_[8];  // the beginning of the next word
  size_t held_ = 0;
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

void write(const Saved& saved, const std::string& path, const std::function<void(const Put&)>& cache) {
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.capacity = static_cast<uint64_t>(saved.capacity);
  header.identity_bytes = saved.identity.size();
  header.token_count = saved.tokens.size();
  header.cached = static_cast<uint64_t>(saved.cached);
  header.cache_bytes = saved.cache_bytes;
  header.note_bytes = saved.note.size();
  AtomicFile file(path);
  Checksum sum;
  const auto add = [&](const void* data, size_t size) {
    sum.add(data, size);
    file.write(data, size);
  };
  const auto put = [&](const void* data, size_t size) {
    add(data, size);
    sum.end_part();
  };
  put(&header, sizeof header);
  put(saved.identity.data(), saved.identity.size());
  put(saved.tokens.data(), saved.tokens.size() * sizeof(int64_t));
  uint64_t given = 0;
  cache([&](const void* data, uint64_t bytes) {
    given += bytes;
    if (given <= saved.cache_bytes) add(data, static_cast<size_t>(bytes));
  });
  if (given != saved.cache_bytes)
    throw Failure(SF_EXECUTION, "the engine saved " + std::to_string(given) + " bytes of its cache, which takes " +
                                    std::to_string(saved.cache_bytes));
  sum.end_part();
  put(saved.note.data(), saved.note.size());
  const uint64_t checksum = sum.end_part();
  file.write(&checksum, sizeof checksum);
  if (!file.commit()) bad(path, std::string("cannot be written: ") + why(file.error()));
}

SavedFile::SavedFile(const std::string& path, const Spec& spec) : file_(std::fopen(path.c_str(), "rb")) {
  if (file_ == nullptr) bad(path, "cannot be opened");
  Checksum sum;
  const auto add = [&](void* data, size_t size) {
    if (size > 0 && std::fread(data, 1, size, file_.get()) != size) bad(path, "is cut off");
    sum.add(data, size);
  };
  const auto get = [&](void* data, size_t size) {
    add(data, size);
    sum.end_part();
  };
  Header header;
  get(&header, sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) bad(path, "is no saved session");
  if (header.version != kVersion)
    bad(path,
        "was written in form " + std::to_string(header.version) + ", this version reads " + std::to_string(kVersion));
  if (header.identity_bytes > kMostIdentity) bad(path, "is damaged");
  saved_.identity.resize(header.identity_bytes);
  get(saved_.identity.data(), saved_.identity.size());
  if (saved_.identity != spec.identity || header.capacity != static_cast<uint64_t>(spec.capacity))
    bad(path, "was saved with another bundle");
  if (header.token_count > header.capacity || header.cached > header.token_count) bad(path, "is damaged");
  // The file's own size bounds what is allocated.
  const long here = std::ftell(file_.get());
  if (here < 0 || std::fseek(file_.get(), 0, SEEK_END) != 0) bad(path, "cannot be read");
  const uint64_t size = static_cast<uint64_t>(std::ftell(file_.get()));
  const uint64_t before = static_cast<uint64_t>(here) + header.token_count * sizeof(int64_t) + sizeof(uint64_t);
  if (size < before || header.cache_bytes > size - before || size - before - header.cache_bytes != header.note_bytes)
    bad(path, "is cut off or damaged");
  std::fseek(file_.get(), here, SEEK_SET);
  saved_.capacity = spec.capacity, saved_.cached = static_cast<int64_t>(header.cached);
  saved_.cache_bytes = left_ = header.cache_bytes;
  saved_.tokens.resize(header.token_count);
  get(saved_.tokens.data(), saved_.tokens.size() * sizeof(int64_t));
  const long cache = std::ftell(file_.get());
  std::vector<uint8_t> part(static_cast<size_t>(std::min(header.cache_bytes, kPartBytes)));
  for (uint64_t left = header.cache_bytes; left > 0; left -= std::min<uint64_t>(left, part.size()))
    add(part.data(), static_cast<size_t>(std::min<uint64_t>(left, part.size())));
  sum.end_part();
  saved_.note.resize(header.note_bytes);
  get(saved_.note.data(), saved_.note.size());
  uint64_t found;
  if (std::fread(&found, 1, sizeof found, file_.get()) != sizeof found || found != sum.end_part())
    bad(path, "is damaged");
  for (const int64_t token : saved_.tokens)
    if (token < 0 || token >= spec.vocab_size) bad(path, "is damaged");
  if (std::fseek(file_.get(), cache, SEEK_SET) != 0) bad(path, "cannot be read");
}

bool SavedFile::get(void* data, uint64_t bytes) {
  if (bytes > left_) return false;
  left_ -= bytes;
  return std::fread(data, 1, static_cast<size_t>(bytes), file_.get()) == bytes;
}

}  // namespace streamfuse
