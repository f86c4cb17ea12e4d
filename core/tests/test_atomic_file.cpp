// The order in which an atomic file reaches the disk. This program defines its own fsync and rename, which record their
// calls, and fchmod and remove, to behave as with another file system and another writer. Run: pytest
// tests/core/test_atomic_file.py builds and runs it.
#include "../atomic_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace {

std::string calls;        // since the test began
bool disk_fails = false;  // whether fsync of a file returns an error
bool has_modes = true;    // whether the file system lets the mode of a file be changed
bool is_awaited = false;  // whether another writer, which waits for a file, creates it again once it is removed

}  // namespace

extern "C" int fsync(int descriptor) {
  struct stat entry;
  if (fstat(descriptor, &entry) != 0) return -1;
  const bool is_folder = S_ISDIR(entry.st_mode);
  calls += is_folder ? "fsync folder; " : "fsync " + std::to_string(entry.st_size) + " bytes; ";
  if (is_folder || !disk_fails) return static_cast<int>(syscall(SYS_fsync, descriptor));
  errno = EIO;
  return -1;
}

extern "C" int fchmod(int descriptor, mode_t mode) noexcept {
  if (!has_modes) {
    errno = EPERM;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fchmod, descriptor, mode));
}

extern "C" int rename(const char* from, const char* to) noexcept {
  calls += "rename; ";
  return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

extern "C" int remove(const char* path) noexcept {
  if (unlink(path) != 0) return errno == EISDIR ? rmdir(path) : -1;
  if (is_awaited) close(open(path, O_WRONLY | O_CREAT | O_EXCL, 0600));
  return 0;
}

namespace {

using streamfuse::AtomicFile;

int failures = 0;

void expect(bool condition, const char* what, const std::string& found) {
  if (condition) return;
  std::fprintf(stderr, "FAILED: %s: %s\n", what, found.c_str());
  ++failures;
}

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Folder {
  std::filesystem::path path;
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "streamfuse-file-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
};

// After a power cut, a renamed file may be empty unless its contents were on the disk before the rename.
void bytes_are_on_the_disk_before_the_name(const std::filesystem::path& path) {
  calls.clear();
  AtomicFile file(path);
  file.write("first, ", 7);
  file.write("second", 6);
  expect(file.commit(), "a commit fails", std::to_string(file.error()));
  expect(calls == "fsync 13 bytes; rename; fsync folder; ", "not in this order", calls);
  expect(text_of(path) == "first, second", "not what was written", text_of(path));
}

void what_the_disk_refuses_replaces_nothing(const std::filesystem::path& path) {
  calls.clear();
  disk_fails = true;
  {
    AtomicFile file(path);
    file.write("third", 5);
    expect(!file.commit() && file.error() == EIO, "an error of the disk is not reported", std::to_string(file.error()));
  }
  disk_fails = false;
  expect(calls == "fsync 5 bytes; ", "calls after the error", calls);
  expect(text_of(path) == "first, second", "the old file is gone", text_of(path));
  expect(!std::filesystem::exists(path.string() + std::string(streamfuse::kTemporary)), "the temporary file is left",
         path);
}

// Some file systems of memory cards and networks have no modes. What another process has left is not written to there.
void a_file_system_without_modes_has_atomic_files(const std::filesystem::path& path) {
  const std::string left = path.string() + std::string(streamfuse::kTemporary), other = path.string() + ".other";
  has_modes = false;
  for (const std::string text : {"new", "over what was left"}) {
    AtomicFile file(path);
    file.write(text.data(), text.size());
    expect(file.commit(), "a commit fails without modes", std::to_string(file.error()));
    expect(text_of(path) == text, "not what was written", text_of(path));
    if (std::filesystem::exists(other)) continue;
    std::ofstream(left) << "left";
    std::filesystem::create_hard_link(left, other);
  }
  expect(text_of(other) == "left", "the file that was left is written to", text_of(other));
  has_modes = true;
}

// A writer without modes removes what another has left, and one that waited for that may create the next file first.
void a_writer_without_modes_takes_the_file_that_another_creates(const std::filesystem::path& path) {
  has_modes = false;
  is_awaited = true;
  {
    AtomicFile file(path);
    file.write("after another", 13);
    expect(file.commit(), "a commit fails beside another writer", std::to_string(file.error()));
  }
  has_modes = true;
  is_awaited = false;
  expect(text_of(path) == "after another", "not what was written", text_of(path));
}

// A forked process shares the lock of its parent. It must not keep it on the file that gets the name, nor release it.
void a_process_that_is_forked_meanwhile_neither_keeps_nor_releases_the_lock(const std::filesystem::path& path) {
  const auto is_locked = [](const std::string& name) {
    const int descriptor = open(name.c_str(), O_RDONLY);
    const bool locked = flock(descriptor, LOCK_EX | LOCK_NB) != 0;
    close(descriptor);
    return locked;
  };
  int closed[2];
  if (pipe(closed) != 0) std::abort();
  streamfuse::LockedFile held;
  AtomicFile file(path);
  file.write("forked", 6);
  expect(held.lock(path.string() + ".held", O_RDWR | O_CREAT), "a new file cannot be locked", std::to_string(errno));
  const pid_t child = fork();
  if (child < 0) std::abort();
  if (child == 0) {
    held.close();
    if (write(closed[1], "", 1) != 1) _exit(EXIT_FAILURE);
    while (true) pause();
  }
  char byte;
  expect(read(closed[0], &byte, 1) == 1, "the child has failed", std::to_string(errno));
  expect(is_locked(path.string() + ".held"), "the child has released the lock of its parent", path);
  expect(file.commit(), "a commit fails beside a child", std::to_string(file.error()));
  expect(!is_locked(path), "the child keeps the lock", path);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  for (const int descriptor : closed) close(descriptor);
}

}  // namespace

int main() {
  const Folder folder;
  bytes_are_on_the_disk_before_the_name(folder.path / "chat");
  what_the_disk_refuses_replaces_nothing(folder.path / "chat");
  a_file_system_without_modes_has_atomic_files(folder.path / "chat");
  a_writer_without_modes_takes_the_file_that_another_creates(folder.path / "chat");
  a_process_that_is_forked_meanwhile_neither_keeps_nor_releases_the_lock(folder.path / "chat");
  if (failures > 0) return EXIT_FAILURE;
  std::puts("atomic file: all tests passed");
  return EXIT_SUCCESS;
}
