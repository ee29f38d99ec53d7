#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>
#include <system_error>

namespace qkv {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const char* what, const fs::path& path, std::error_code code) {
  throw fs::filesystem_error(what, path, code);
}

[[noreturn]] void fail(const char* what, const fs::path& path, int number) {
  fail(what, path, std::error_code(number, std::generic_category()));
}

/// Most bytes that one call of the system is asked for; Linux takes no more than 2 GiB at a time.
constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;

std::string temporary_name(int attempt) {
  static std::atomic<unsigned> count{0};
  return ".qkv-" + std::to_string(::getpid()) + "-" + std::to_string(count++) + "-" + std::to_string(attempt) + ".tmp";
}

/// Where the bytes are to go in the end. A rename over a device or a folder would destroy it, or fail after the work.
fs::path replaceable(const fs::path& path) {
  std::error_code ignored;
  const bool is_link = fs::is_symlink(fs::symlink_status(path, ignored));
  fs::path target = is_link ? fs::canonical(path) : path;
  const fs::file_status status = fs::status(target, ignored);
  if (fs::is_directory(status)) fail("cannot write", path, EISDIR);
  if (fs::exists(status) && !fs::is_regular_file(status)) fail("cannot write: not a regular file", path, EINVAL);
  return target;
}

}  // namespace

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

InputFile::InputFile(const fs::path& path) : path_(path) {
  // Non-blocking, or opening a pipe would wait for somebody who writes to it.
  descriptor_ = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (descriptor_.number() < 0) fail("cannot open", path, errno);
  struct stat status = {};
  if (::fstat(descriptor_.number(), &status) != 0) fail("cannot open", path, errno);
  if (S_ISDIR(status.st_mode)) fail("cannot read", path, EISDIR);
  if (!S_ISREG(status.st_mode)) fail("cannot read: not a regular file", path, EINVAL);
  size_ = static_cast<std::uint64_t>(status.st_size);
}

std::size_t InputFile::read(std::uint64_t offset, std::span<std::byte> bytes) const {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const std::size_t wanted = std::min(bytes.size() - done, kMostAtOnce);
    const ssize_t got = ::pread(descriptor_.number(), bytes.data() + done, wanted, static_cast<off_t>(offset + done));
    if (got == 0) break;
    if (got > 0) done += static_cast<std::size_t>(got);
    if (got < 0 && errno != EINTR) fail("cannot read", path_, errno);
  }
  return done;
}

OutputFile::OutputFile(const fs::path& path) : path_(path), target_(replaceable(path)) {
  constexpr int kAttempts = 100;  // names that a process of the same number left behind
  for (int attempt = 0; descriptor_.number() < 0; ++attempt) {
    temporary_ = target_.parent_path() / temporary_name(attempt);
    descriptor_ = Descriptor(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (descriptor_.number() < 0 && (errno != EEXIST || attempt == kAttempts)) fail("cannot write", path_, errno);
  }
}

OutputFile::~OutputFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void OutputFile::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(descriptor_.number(), bytes.data(), std::min(bytes.size(), kMostAtOnce));
    if (put >= 0) bytes = bytes.subspan(static_cast<std::size_t>(put));
    if (put < 0 && errno != EINTR) fail("cannot write", path_, errno);
  }
}

void OutputFile::commit() {
  // Before the rename: after a power cut the name must not stand for bytes that never arrived.
  if (::fsync(descriptor_.number()) != 0) fail("cannot write", path_, errno);
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail("cannot write", path_, errno);
  temporary_.clear();
}

}  // namespace qkv
