#include "rounding.h"

#include "memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "atomic_file.h"
#include "error.h"
#include "hash.h"

namespace streamfuse {
namespace {

// The file: this header, then answers, each a FileEntry and its tokens as int32. Little-endian, as in memory. Answers
// are appended as they end, so the last one may be cut off after a crash; then it is dropped.
struct FileHeader {
  char magic[8];
  uint64_t identity;  // hash
};
struct FileEntry {
  uint32_t count, sum;
};
constexpr char kFileMagic[8] = {'s', 'f', 'm', 'e', 'm', 'o', '1', '\n'};

FileHeader header_of(const std::string& identity) {
  FileHeader header{{}, fnv1a(identity)};
  std::memcpy(header.magic, kFileMagic, sizeof kFileMagic);
  return header;
}

FileEntry entry_of(std::span<const int32_t> tokens) {
  const std::string_view bytes(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  return {static_cast<uint32_t>(tokens.size()), static_cast<uint32_t>(fnv1a(bytes))};
}

}  // namespace

Memory::Memory(std::string path, int64_t capacity, std::string identity, int64_t vocab_size)
    : path_(std::move(path)),
      identity_(std::move(identity)),
      capacity_(static_cast<size_t>(capacity)),
      vocab_size_(vocab_size) {
  size_t slots = 16;
  while (slots < 3 * capacity_) slots *= 2;
  slots_.assign(slots, 0);
  if (!path_.empty()) load();
}

void Memory::load() {
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  const std::unique_ptr<std::FILE, Closer> file(std::fopen(path_.c_str(), "rb"));
  if (file == nullptr) {
    if (errno != ENOENT) throw Failure(SF_BAD_FILE, path_ + " cannot be opened: " + std::strerror(errno));
    write_file();
    if (file_failed_) throw Failure(SF_BAD_FILE, path_ + " cannot be written");
    return;
  }
  FileHeader header;
  if (std::fread(&header, 1, sizeof header, file.get()) != sizeof header ||
      std::memcmp(header.magic, kFileMagic, sizeof kFileMagic) != 0)
    throw Failure(SF_BAD_FILE, path_ + " is not a memory of streamfuse; name another file");
  const FileHeader own = header_of(identity_);
  bool whole = header.identity == own.identity, dropped = false;
  FileEntry entry;
  std::vector<int32_t> tokens;
  while (whole) {
    const size_t found = std::fread(&entry, 1, sizeof entry, file.get());
    if (found == 0) break;
    whole = found == sizeof entry && entry.count > 0 && entry.count < capacity_;
    if (!whole) break;
    tokens.resize(entry.count);
    whole = std::fread(tokens.data(), sizeof(int32_t), tokens.size(), file.get()) == tokens.size() &&
            entry.sum == entry_of(tokens).sum && is_valid(tokens);
    if (whole) dropped |= append(0, tokens);
  }
  if (dropped || !whole) write_file();
}

bool Memory::is_valid(std::span<const int32_t> tokens) const {
  return std::all_of(tokens.begin(), tokens.end(), [&](int32_t token) { return token >= 0 && token < vocab_size_; });
}

uint32_t Memory::new_owner() {
  const auto locked = lock();
  return ++owners_made_;
}

void Memory::add(uint32_t owner, std::span<const int64_t> tokens) {
  tokens = tokens.last(std::min(tokens.size(), capacity_ - 1));
  if (tokens.size() <= kKey) return;  // nothing could match
  const std::vector<int32_t> narrow(tokens.begin(), tokens.end());
  const auto locked = lock();
  const bool dropped = append(owner, narrow);
  if (path_.empty() || file_failed_) return;
  if (dropped)
    write_file();
  else
    append_to_file(narrow);
}

void Memory::forget() {
  const auto locked = lock();
  tokens_.clear();
  owners_.clear();
  before_.clear();
  std::fill(slots_.begin(), slots_.end(), 0);
  file_failed_ = false;
  if (!path_.empty()) write_file();
  if (file_failed_) throw Failure(SF_BAD_FILE, path_ + " cannot be written");
}

size_t Memory::latest(const std::array<int64_t, kKey>& key) const { return static_cast<size_t>(slots_[slot(key)]); }

// The slot of a key; its value is 0 if the key has not occurred.
size_t Memory::slot(const std::array<int64_t, kKey>& key) const {
  uint64_t mixed = 0;
  for (const int64_t token : key) mixed = (mixed + static_cast<uint64_t>(token) + 1) * 0x9E3779B97F4A7C15u;
  for (size_t at = static_cast<size_t>(mixed >> 32);; ++at) {
    const size_t found = at & (slots_.size() - 1), end = static_cast<size_t>(slots_[found]);
    if (end == 0) return found;
    if (tokens_[end - 1] == key[0] && tokens_[end - 2] == key[1]) return found;
  }
}

bool Memory::append(uint32_t owner, std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) push(owner, token);
  push(owner, kBoundary);
  if (tokens_.size() <= capacity_ + capacity_ / 4) return false;
  drop_oldest();
  return true;
}

void Memory::push(uint32_t owner, int32_t token) {
  tokens_.push_back(token);
  owners_.push_back(owner);
  before_.push_back(0);
  index(tokens_.size() - 1);
}

void Memory::index(size_t place) {
  before_[place] = 0;
  if (place + 1 < kKey) return;
  const std::array<int64_t, kKey> key = {tokens_[place], tokens_[place - 1]};
  if (std::find(key.begin(), key.end(), kBoundary) != key.end()) return;
  int32_t& end = slots_[slot(key)];
  before_[place] = end;
  end = static_cast<int32_t>(place) + 1;
}

// Drops the oldest answers until the rest fits.
void Memory::drop_oldest() {
  const auto least = tokens_.end() - static_cast<std::ptrdiff_t>(capacity_);
  const auto kept = std::find(least - 1, tokens_.end(), kBoundary) + 1 - tokens_.begin();
  tokens_.erase(tokens_.begin(), tokens_.begin() + kept);
  owners_.erase(owners_.begin(), owners_.begin() + kept);
  before_.resize(tokens_.size());
  std::fill(slots_.begin(), slots_.end(), 0);
  for (size_t place = 0; place < tokens_.size(); ++place) index(place);
}

void Memory::write_file() {
  AtomicFile file(path_);
  const FileHeader header = header_of(identity_);
  file.write(&header, sizeof header);
  for (auto begin = tokens_.begin(); begin != tokens_.end();) {
    const auto end = std::find(begin, tokens_.end(), kBoundary);
    const FileEntry entry = entry_of(std::span(begin, end));
    file.write(&entry, sizeof entry);
    file.write(&*begin, entry.count * sizeof(int32_t));
    begin = end + 1;
  }
  file_failed_ = !file.commit();
}

void Memory::append_to_file(std::span<const int32_t> tokens) {
  const FileEntry entry = entry_of(tokens);
  std::vector<char> bytes(sizeof entry + tokens.size_bytes());
  std::memcpy(bytes.data(), &entry, sizeof entry);
  std::memcpy(bytes.data() + sizeof entry, tokens.data(), tokens.size_bytes());
  const int file = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
  // In one call, so that answers of two processes do not mix.
  file_failed_ = file < 0 || ::write(file, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size());
  if (file >= 0) close(file);
}

}  // namespace streamfuse
