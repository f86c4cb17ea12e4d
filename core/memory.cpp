#include "rounding.h"

#include "memory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "error.h"
#include "file_paths.h"
#include "hash.h"

namespace streamfuse {
namespace {

// The file: this header, then answers, each a FileEntry and its tokens as int32. Little-endian, as in memory. Answers
// are appended as they end, so the last one may be cut off after a crash; then it is dropped. Processes that share the
// file lock it. One that drops answers replaces the file, one that forgets them empties it, and an empty file is only
// replaced, never appended to: so the others notice both, and read the file anew.
struct FileHeader {
  char magic[8];
  uint64_t identity;  // hash
};
struct FileEntry {
  uint32_t count, sum;
};
constexpr char kFileMagic[8] = {'s', 'f', 'm', 'e', 'm', 'o', '1', '\n'};

constexpr int kFileFlags = O_RDWR | O_APPEND;
constexpr size_t kFirstRoom = 1024;  // tokens
constexpr int kPlaces = 64;          // of the end of an answer in a text that are compared with it

FileHeader header_of(const std::string& identity) {
  FileHeader header{{}, fnv1a(identity)};
  std::memcpy(header.magic, kFileMagic, sizeof kFileMagic);
  return header;
}

FileEntry entry_of(std::span<const int32_t> tokens) {
  const std::string_view bytes(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  return {static_cast<uint32_t>(tokens.size()), static_cast<uint32_t>(fnv1a(bytes))};
}

bool read_at(int file, size_t offset, void* data, size_t size) {
  return ::pread(file, data, size, static_cast<off_t>(offset)) == static_cast<ssize_t>(size);
}

bool is_memory(int file) {
  char magic[sizeof kFileMagic];
  return read_at(file, 0, magic, sizeof magic) && std::memcmp(magic, kFileMagic, sizeof magic) == 0;
}

// Not the caller's other files: nothing is locked or written before this is known.
bool is_memory(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) return false;
  const bool found = is_memory(file);
  ::close(file);
  return found;
}

// Unlocks a file at the end of a block, also after an exception.
struct Unlock {
  LockedFile& file;
  ~Unlock() { file.unlock(); }
};

[[noreturn]] void bad_file(const std::string& path, const char* problem) {
  const char* const why = errno == EWOULDBLOCK ? "another process holds it" : std::strerror(errno);
  throw Failure(SF_BAD_FILE, path + problem + why);
}

// The files of answers whose names are that of `path`, a dot and more.
std::vector<std::string> memories_beside(const std::string& path) {
  const std::string folder = folder_of(path);
  const size_t name_at = path.rfind('/') + 1;  // 0 if there is no folder in the path
  const std::string before = path.substr(0, name_at), begin = path.substr(name_at) + ".";
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(folder.c_str()), ::closedir);
  if (entries == nullptr) bad_file(folder, " cannot be listed; delete remembered answers of adapters there yourself: ");
  std::vector<std::string> found;
  while (const dirent* const entry = ::readdir(entries.get())) {
    const std::string name = entry->d_name;
    if (name.size() > begin.size() && name.starts_with(begin) && is_memory(before + name))
      found.push_back(before + name);
  }
  return found;
}

// Removes the contents of a locked file, for which a full disk has room too. Processes that have the file open drop
// what they have read of it, and the next one that adds an answer writes a new file.
void empty_locked(const LockedFile& file, const std::string& path) {
  if (ftruncate(file.descriptor(), 0) != 0) bad_file(path, " cannot be emptied: ");
  flush(file.descriptor());  // not every file system can
}

// Empties a file of answers, or removes a temporary one, which a killed process has left.
void empty_file(const std::string& path) {
  LockedFile file;
  if (!file.lock(path, kFileFlags)) {
    if (errno == ENOENT) return;  // its writer has renamed it
    bad_file(path, " cannot be emptied: ");
  }
  if (!path.ends_with(kTemporary)) return empty_locked(file, path);
  if (std::remove(path.c_str()) != 0) bad_file(path, " cannot be removed: ");
}

}  // namespace

Memory::Memory(const std::string& path, int64_t capacity, std::string identity, int64_t vocab_size)
    : path_(absolute_path(path)),
      identity_(std::move(identity)),
      capacity_(static_cast<size_t>(capacity)),
      limit_(capacity_ + capacity_ / 4),
      vocab_size_(vocab_size),
      answers_(0) {
  if (path_.empty()) return;
  const Unlock at_end{file_};
  if (!file_.lock(path_, kFileFlags | O_CREAT)) bad_file(path_, " cannot be written: ");
  if (read_file())
    replace_file();
  else
    fchmod(file_.descriptor(), 0600);  // others may be able to read it; not every file system has modes
  if (file_failed_) bad_file(path_, " cannot be written: ");
}

bool Memory::is_valid(std::span<const int32_t> tokens) const {
  return std::all_of(tokens.begin(), tokens.end(), [&](int32_t token) { return token >= 0 && token < vocab_size_; });
}

std::span<const int32_t> Memory::fitting(std::span<const int32_t> answer) const {
  answer = answer.last(std::min(answer.size(), capacity_ - 1));
  return answer.size() > kShortest ? answer : std::span<const int32_t>();
}

void Memory::add(std::span<const int64_t> tokens) {
  const std::vector<int32_t> narrow(tokens.begin(), tokens.end());
  const std::span<const int32_t> answer = fitting(narrow);
  if (answer.empty()) return;
  const std::lock_guard writing(file_mutex_);
  const Unlock at_end{file_};
  bool has_file = false;
  if (!path_.empty() && !file_failed_) {
    has_file = file_.lock(path_, kFileFlags);
    file_failed_ = !has_file && errno != EWOULDBLOCK;
  }
  bool replace = false;
  {
    const auto locked = lock();
    try {
      replace = has_file && read_file();
    } catch (const Failure&) {
      file_failed_ = true;
    }
    replace |= append(answer);
  }
  if (path_.empty() || file_failed_) return file_.close();
  if (!has_file) return;
  if (replace)
    replace_file();
  else
    append_to_file(answer);
}

void Memory::forget() {
  const std::lock_guard writing(file_mutex_);
  {
    const auto locked = lock();
    rebuild(answers_.size(), 0);
  }
  file_failed_ = false;
  if (path_.empty()) return;
  FirstFailure failure;
  std::vector<std::string> others;
  failure.attempt([&] { empty_own_file(); });
  failure.attempt([&] { others = memories_beside(path_); });
  for (const std::string& path : others) failure.attempt([&] { empty_file(path); });
  failure.rethrow();
}

// Also creates it.
void Memory::empty_own_file() {
  const Unlock at_end{file_};
  if (!file_.lock(path_, kFileFlags | O_CREAT)) bad_file(path_, " cannot be written: ");
  empty_locked(file_, path_);
}

void Memory::find_in(const SuffixIndex& text, std::vector<uint32_t>& found) const {
  found.clear();
  for (size_t begin = 0, end = 0; begin < answers_.size(); begin = ++end) {
    while (answers_[end] != SuffixIndex::kBoundary) ++end;
    if (is_in(text, begin, end)) found.push_back(answer_of_[begin]);
  }
  std::sort(found.begin(), found.end());
}

// Whether a text contains an answer. The last tokens of answers differ more than the first ones.
bool Memory::is_in(const SuffixIndex& text, size_t begin, size_t end) const {
  const size_t size = end - begin;
  std::array<int64_t, SuffixIndex::kLongest> path;
  const size_t known = std::min(path.size(), size);
  for (size_t i = 0; i < known; ++i) path[i] = answers_[end - 1 - i];
  SuffixIndex::Match at = text.longest({path.data(), known});
  if (at.length < known) return false;
  for (int n = 0; at.place >= size && n < kPlaces; ++n, at.place = text.before(known, at.place)) {
    size_t same = known;
    while (same < size && text[at.place - 1 - same] == answers_[end - 1 - same]) ++same;
    if (same == size) return true;
  }
  return false;
}

bool Memory::append(std::span<const int32_t> tokens) {
  const size_t needed = answers_.size() + tokens.size() + 1;
  const bool drops = needed > limit_;
  if (drops) {
    size_t first = needed - capacity_;
    while (answers_[first - 1] != SuffixIndex::kBoundary) ++first;
    rebuild(first, limit_);
  } else if (needed > room_) {
    rebuild(0, std::min(limit_, std::max({needed, 2 * room_, kFirstRoom})));
  }
  const uint32_t hash = entry_of(tokens).sum;
  answer_of_.resize(answers_.size() + tokens.size() + 1, hash);  // `add` does not allocate, so both grow or neither
  for (const int32_t token : tokens) answers_.add(token);
  answers_.add(SuffixIndex::kBoundary);
  return drops;
}

// Keeps the tokens from `first` on, and has room for `capacity`.
void Memory::rebuild(size_t first, size_t capacity) {
  SuffixIndex kept(capacity);
  for (size_t place = first; place < answers_.size(); ++place) kept.add(answers_[place]);
  answers_ = std::move(kept);
  answer_of_.erase(answer_of_.begin(), answer_of_.begin() + static_cast<std::ptrdiff_t>(first));
  room_ = capacity;
}

// Reads what is new in the locked file. True: the file has to be replaced.
bool Memory::read_file() {
  const int file = file_.descriptor();
  struct stat status;
  if (fstat(file, &status) != 0) bad_file(path_, " cannot be read: ");
  const size_t size = static_cast<size_t>(status.st_size);
  if (!S_ISREG(status.st_mode) || (size > 0 && !is_memory(file)))
    throw Failure(SF_BAD_FILE, path_ + " is not a memory of streamfuse; name another file");
  FileHeader header;
  const bool mine = read_at(file, 0, &header, sizeof header) && header.identity == header_of(identity_).identity;
  if (file_.opened() || size < read_to_ || !mine) {
    rebuild(answers_.size(), 0);
    read_to_ = sizeof header;
  }
  if (!mine) return true;
  bool dropped = false;
  FileEntry entry;
  std::vector<int32_t> tokens;
  while (size - read_to_ > sizeof entry) {
    if (!read_at(file, read_to_, &entry, sizeof entry)) bad_file(path_, " cannot be read: ");
    const size_t begin = read_to_ + sizeof entry;
    if (entry.count == 0 || entry.count > (size - begin) / sizeof(int32_t)) break;
    tokens.resize(entry.count);
    if (!read_at(file, begin, tokens.data(), tokens.size() * sizeof(int32_t))) bad_file(path_, " cannot be read: ");
    if (entry.sum != entry_of(tokens).sum || !is_valid(tokens)) break;
    read_to_ = begin + tokens.size() * sizeof(int32_t);
    if (const auto answer = fitting(tokens); !answer.empty()) dropped |= append(answer);
  }
  // The rest is damaged, or was cut off.
  if (read_to_ < size && ftruncate(file, static_cast<off_t>(read_to_)) != 0) bad_file(path_, " cannot be written: ");
  return dropped;
}

void Memory::replace_file() {
  AtomicFile replacement(path_);
  const FileHeader header = header_of(identity_);
  replacement.write(&header, sizeof header);
  std::vector<int32_t> tokens;
  for (size_t place = 0; place < answers_.size(); ++place) {
    if (answers_[place] != SuffixIndex::kBoundary) {
      tokens.push_back(answers_[place]);
      continue;
    }
    const FileEntry entry = entry_of(tokens);
    replacement.write(&entry, sizeof entry);
    replacement.write(tokens.data(), tokens.size() * sizeof(int32_t));
    tokens.clear();
  }
  file_failed_ = !replacement.commit();
  file_.close();
}

void Memory::append_to_file(std::span<const int32_t> tokens) {
  const FileEntry entry = entry_of(tokens);
  std::vector<char> bytes(sizeof entry + tokens.size_bytes());
  std::memcpy(bytes.data(), &entry, sizeof entry);
  std::memcpy(bytes.data() + sizeof entry, tokens.data(), tokens.size_bytes());
  file_failed_ = ::write(file_.descriptor(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size());
  read_to_ += bytes.size();
}

}  // namespace streamfuse
