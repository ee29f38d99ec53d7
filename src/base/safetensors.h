#ifndef QKV_SRC_BASE_SAFETENSORS_H_
#define QKV_SRC_BASE_SAFETENSORS_H_

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/safetensors_header.h"
#include "qkv/dtype.h"
#include "qkv/tensor.h"

namespace qkv {

/// A file of named tensors, Hugging Face's format: https://github.com/huggingface/safetensors. Opening it reads and
/// checks its header; each tensor is read when it is asked for. Any number of threads may read at once.
///
/// What is wrong with the contents is a ValueError that names the file, the tensor, what was seen and what was
/// expected; what the operating system refuses is a std::filesystem::filesystem_error. The file may come from anybody.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  /// The object __metadata__; empty where the file has none.
  const std::map<std::string, std::string>& metadata() const noexcept { return header_.metadata; }
  bool contains(std::string_view name) const { return header_.tensors.contains(name); }
  /// Of all tensors, sorted.
  std::vector<std::string> names() const;

  // These throw ValueError for a name that the file has not, a dtype that qkv has not, and more axes than a view has.
  Dtype dtype(std::string_view name) const;
  Extents shape(std::string_view name) const;
  /// @throws ValueError too if the file has become shorter since, or a bool is neither 0 nor 1; std::bad_alloc.
  Tensor read(std::string_view name) const;

 private:
  const SafetensorsEntry& entry(std::string_view name) const;

  InputFile file_;
  std::string name_;  ///< of the file, for errors
  std::uint64_t data_begin_ = 0;
  SafetensorsHeader header_;
};

/// A tensor to be written, in memory of the caller's.
struct NamedView {
  std::string name;
  ConstTensorView view;
};

/// Writes a safetensors file, or throws and leaves what was there: see OutputFile. Views of any strides become
/// row-major on the way, through a buffer of fixed size. The data of wider elements come first, so that all of them are
/// aligned; tensors of equally wide elements keep the order given. Bools become 0 or 1.
/// @throws ValueError for names that are used twice, "__metadata__", not UTF-8 or with a zero byte, text in the
///     metadata that is not UTF-8, null data, more bytes than 63 bits can count; filesystem_error.
void write_safetensors(const std::filesystem::path& path, const std::map<std::string, std::string>& metadata,
                       std::span<const NamedView> tensors);

}  // namespace qkv

#endif  // QKV_SRC_BASE_SAFETENSORS_H_
