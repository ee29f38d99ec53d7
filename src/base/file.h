#ifndef QKV_SRC_BASE_FILE_H_
#define QKV_SRC_BASE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>

namespace qkv {

/// An open file of the operating system, closed with its owner.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) noexcept : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor();

  int number() const noexcept { return number_; }

 private:
  int number_ = -1;
};

/// A regular file that is read at any place, by any number of threads at once. What the operating system refuses is a
/// std::filesystem::filesystem_error with the path and its reason.
class InputFile {
 public:
  /// A directory is refused, and so is what has no size: a pipe would be waited for, a device has no end.
  explicit InputFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const noexcept { return path_; }
  /// Bytes at the time it was opened.
  std::uint64_t size() const noexcept { return size_; }
  /// Reads from this byte of the file on. @returns how many bytes there were: fewer than asked for only at its end.
  std::size_t read(std::uint64_t offset, std::span<std::byte> bytes) const;

 private:
  std::filesystem::path path_;
  Descriptor descriptor_;
  std::uint64_t size_ = 0;
};

/// A file that comes into being whole or not at all: written under another name in the same folder, which commit()
/// turns into the right one. Without commit() nothing remains, and what stood there before stays. Where the path is a
/// symbolic link, what it points at is replaced. Errors are those of InputFile.
class OutputFile {
 public:
  /// Refuses to replace what is no regular file, such as a directory or a device.
  explicit OutputFile(const std::filesystem::path& path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  void append(std::span<const std::byte> bytes);
  /// When this returns, the bytes have reached the disk under the path's own name.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path target_;     ///< path_ without symbolic links
  std::filesystem::path temporary_;  ///< empty once it is gone
  Descriptor descriptor_;
};

}  // namespace qkv

#endif  // QKV_SRC_BASE_FILE_H_
