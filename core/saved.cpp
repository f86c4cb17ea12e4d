#include "rounding.h"

#include "saved.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "atomic_file.h"
#include "error.h"
#include "file_paths.h"

namespace streamfuse {
namespace {

// The file: these numbers, little-endian as in memory, then identity, tokens, cache, note, and the checksum of all
// before it.
struct Header {
  char magic[8];
  uint64_t version, capacity, identity_bytes, token_count, cached, cache_bytes, note_bytes;
};
constexpr char kMagic[8] = {'s', 'f', 's', 'e', 's', 's', 'n', '\n'};
constexpr uint64_t kVersion = 2, kPartBytes = uint64_t{1} << 18;  // kPartBytes: read at once while the cache is checked

// FNV-1a over the words of each part, the last bytes of a part one by one; detects damage, not tampering.
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
  void mix(uint64_t word) {
    value_ = (value_ ^ word) * 0x100000001b3u;
    value_ ^= value_ >> 29;
  }

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
    case EISDIR:
      return "it is a folder";
    case EINVAL:
      return "it is not a regular file";
    case ENAMETOOLONG:
      return "its name is too long";
    case EWOULDBLOCK:
      return "another process is writing the file";
    default:
      return "the disk failed";
  }
}

[[noreturn]] void bad(const std::string& path, const std::string& why) { throw Failure(SF_BAD_FILE, path + " " + why); }

// Opens a saved session and reads its tokens. The constructor checks that the file is of this bundle; only `check`
// detects all damage.
class SavedFile {
 public:
  SavedFile(const std::string& path, const Spec& spec);

  std::vector<int64_t> tokens;
  int64_t cached = 0;        // tokens in the cache
  uint64_t cache_bytes = 0;  // 0 if the engine could not save them
  std::string note;          // known after `check`

  void check();               // reads the whole file
  void load(Engine& engine);  // after `check`; the engine's cache must be empty, and is empty again if this throws

 private:
  void read(void* data, size_t size);
  void add(void* data, size_t size);  // to the checksum too
  void get(void* data, size_t size);  // a whole part

  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Closer> file_;
  Checksum sum_;  // of all that was read
  uint64_t note_bytes_ = 0;
};

void SavedFile::read(void* data, size_t size) {
  if (size == 0 || std::fread(data, 1, size, file_.get()) == size) return;
  bad(path_, std::ferror(file_.get()) != 0 ? std::string("cannot be read: ") + why(errno) : "is cut off");
}

void SavedFile::add(void* data, size_t size) {
  read(data, size);
  sum_.add(data, size);
}

void SavedFile::get(void* data, size_t size) {
  add(data, size);
  sum_.end_part();
}

SavedFile::SavedFile(const std::string& path, const Spec& spec) : path_(path), file_(std::fopen(path.c_str(), "rb")) {
  if (file_ == nullptr) bad(path, "cannot be opened");
  Header header;
  get(&header, sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0) bad(path, "is no saved session");
  if (header.version != kVersion)
    bad(path,
        "was written in form " + std::to_string(header.version) + ", this version reads " + std::to_string(kVersion));
  if (header.identity_bytes > kMostIdentity) bad(path, "is damaged");
  std::string identity(header.identity_bytes, '\0');
  get(identity.data(), identity.size());
  if (identity != spec.identity || header.capacity != static_cast<uint64_t>(spec.capacity))
    bad(path, "was saved with another bundle");
  if (header.token_count > header.capacity || header.cached > header.token_count) bad(path, "is damaged");
  // The size of the file bounds all allocations.
  const long here = std::ftell(file_.get());
  if (here < 0 || std::fseek(file_.get(), 0, SEEK_END) != 0) bad(path, "cannot be read");
  const uint64_t size = static_cast<uint64_t>(std::ftell(file_.get()));
  const uint64_t before = static_cast<uint64_t>(here) + header.token_count * sizeof(int64_t) + sizeof(uint64_t);
  if (size < before || header.cache_bytes > size - before || size - before - header.cache_bytes != header.note_bytes)
    bad(path, "is cut off or damaged");
  std::fseek(file_.get(), here, SEEK_SET);
  cached = static_cast<int64_t>(header.cached);
  cache_bytes = header.cache_bytes;
  note_bytes_ = header.note_bytes;
  tokens.resize(header.token_count);
  get(tokens.data(), tokens.size() * sizeof(int64_t));
  for (const int64_t token : tokens)
    if (token < 0 || token >= spec.vocab_size) bad(path, "is damaged");
}

void SavedFile::check() {
  const long cache_begins = std::ftell(file_.get());
  std::vector<uint8_t> part(static_cast<size_t>(std::min(cache_bytes, kPartBytes)));
  for (uint64_t left = cache_bytes; left > 0; left -= std::min<uint64_t>(left, part.size()))
    add(part.data(), static_cast<size_t>(std::min<uint64_t>(left, part.size())));
  sum_.end_part();
  note.resize(note_bytes_);
  get(note.data(), note.size());
  uint64_t found;
  read(&found, sizeof found);
  if (found != sum_.end_part()) bad(path_, "is damaged");
  if (std::fseek(file_.get(), cache_begins, SEEK_SET) != 0) bad(path_, "cannot be read");
}

void SavedFile::load(Engine& engine) {
  uint64_t left = cache_bytes;
  const auto next = [&](void* data, uint64_t bytes) {
    if (bytes > left) return false;
    left -= bytes;
    return std::fread(data, 1, static_cast<size_t>(bytes), file_.get()) == bytes;
  };
  if (engine.load(cached, next)) return;
  throw Failure(SF_EXECUTION, path_ + " cannot be read, or does not fit this engine; start anew");
}

constexpr const char* kOtherEngine = "holds the cache of another engine";

}  // namespace

void save_session(const std::string& path, const Spec& spec, const std::vector<int64_t>& tokens, const Engine& engine,
                  const std::string& note) {
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.version = kVersion;
  header.capacity = static_cast<uint64_t>(spec.capacity);
  header.identity_bytes = spec.identity.size();
  header.token_count = tokens.size();
  header.cached = static_cast<uint64_t>(engine.cached());
  header.cache_bytes = engine.saved_bytes(engine.cached());
  header.note_bytes = note.size();
  AtomicFile file(path);
  const auto written = [&](bool is_written) {
    if (!is_written) bad(path, std::string("cannot be written: ") + why(file.error()));
  };
  written(file.ok());  // before the engine is asked for its cache
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
  put(spec.identity.data(), spec.identity.size());
  put(tokens.data(), tokens.size() * sizeof(int64_t));
  uint64_t given = 0;
  if (header.cache_bytes > 0)
    engine.save([&](const void* data, uint64_t bytes) {
      given += bytes;
      if (given <= header.cache_bytes) add(data, static_cast<size_t>(bytes));
    });
  if (given != header.cache_bytes)
    throw Failure(SF_EXECUTION, "the engine saved " + std::to_string(given) + " bytes of its cache, which takes " +
                                    std::to_string(header.cache_bytes));
  sum.end_part();
  put(note.data(), note.size());
  const uint64_t checksum = sum.end_part();
  file.write(&checksum, sizeof checksum);
  written(file.commit());
}

std::vector<int64_t> restore_session(const std::string& path, const Spec& spec, Engine& engine,
                                     const std::function<int(const std::string&)>& take,
                                     const std::function<void()>& discard) {
  SavedFile file(path, spec);
  file.check();
  const bool has_cache = file.cache_bytes > 0;
  if (has_cache && engine.saved_bytes(file.cached) != file.cache_bytes) bad(path, kOtherEngine);
  if (const int code = take(file.note); code != SF_OK)
    throw Failure(failure_code(code), path + " holds a note that was refused");
  discard();
  if (has_cache) file.load(engine);
  return std::move(file.tokens);
}

Prefix read_prefix(const std::string& path, const Spec& spec) {
  SavedFile file(path, spec);
  if (file.cached == 0 || file.cache_bytes == 0) bad(path, "holds no cache");
  file.tokens.resize(static_cast<size_t>(file.cached));
  return {absolute_path(path), std::move(file.tokens), file.cache_bytes};
}

void load_prefix(const Prefix& prefix, const Spec& spec, Engine& engine) {
  const auto length = static_cast<int64_t>(prefix.tokens.size());
  if (engine.saved_bytes(length) != prefix.cache_bytes) bad(prefix.path, kOtherEngine);
  SavedFile file(prefix.path, spec);
  file.check();
  if (file.cached != length || file.cache_bytes != prefix.cache_bytes ||
      !std::equal(prefix.tokens.begin(), prefix.tokens.end(), file.tokens.begin()))
    bad(prefix.path, "has changed since the bundle was opened");
  engine.drop(0);
  file.load(engine);
}

}  // namespace streamfuse
