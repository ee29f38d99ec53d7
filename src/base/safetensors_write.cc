#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>

#include "base/checked.h"
#include "base/raise.h"
#include "base/safetensors.h"
#include "base/shape.h"

namespace qkv {
namespace {

/// Gathers small pieces, so that a view of scattered elements does not ask the system for each of them.
class BufferedOutput {
 public:
  explicit BufferedOutput(OutputFile& file) : file_(file), buffer_(std::make_unique<std::byte[]>(kBytes)) {}

  void append(std::span<const std::byte> bytes) {
    if (bytes.size() > kBytes - used_) flush();
    if (bytes.size() > kBytes) {
      file_.append(bytes);
    } else if (!bytes.empty()) {
      std::memcpy(buffer_.get() + used_, bytes.data(), bytes.size());
      used_ += bytes.size();
    }
  }
  void append_bool(std::byte value) {
    const std::byte truth{value != std::byte{0}};
    append({&truth, 1});
  }
  void flush() {
    file_.append({buffer_.get(), used_});
    used_ = 0;
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{1} << 16;
  OutputFile& file_;
  std::unique_ptr<std::byte[]> buffer_;
  std::size_t used_ = 0;
};

/// The elements of a view as runs that lie together: the last axes, as far as they are dense, are one run.
class Runs {
 public:
  explicit Runs(const ConstTensorView& view) : view_(view), item_(size_of(view.dtype())), axes_(view.rank()) {
    while (axes_ > 0 && (view.extent(axes_ - 1) == 1 || view.stride(axes_ - 1) == length_)) {
      length_ *= view.extent(--axes_);
    }
  }

  /// Calls take(bytes) for each run, in row-major order. The view has elements.
  template <class Take>
  void for_each(Take take) const {
    const std::size_t bytes = static_cast<std::size_t>(length_) * item_;
    Extents index = view_.shape();
    for (int axis = 0; axis < axes_; ++axis) index[axis] = 0;
    std::int64_t offset = 0;
    do {
      take(std::span(static_cast<const std::byte*>(view_.data()) + offset * static_cast<std::int64_t>(item_), bytes));
    } while (next(index, offset));
  }

 private:
  bool next(Extents& index, std::int64_t& offset) const {
    for (int axis = axes_ - 1; axis >= 0; --axis) {
      if (++index[axis] < view_.extent(axis)) {
        offset += view_.stride(axis);
        return true;
      }
      // Not one step too far and back: the stride of an axis of extent 1 may be anything.
      offset -= view_.stride(axis) * (view_.extent(axis) - 1);
      index[axis] = 0;
    }
    return false;
  }

  const ConstTensorView& view_;
  std::size_t item_;
  std::int64_t length_ = 1;  ///< of a run, in elements
  int axes_;                 ///< before those of a run
};

/// Wider elements first: each tensor then begins at a multiple of its element's size, as the data do.
std::vector<const NamedView*> in_order(std::span<const NamedView> tensors) {
  std::vector<const NamedView*> ordered;
  ordered.reserve(tensors.size());
  for (const NamedView& tensor : tensors) ordered.push_back(&tensor);
  std::stable_sort(ordered.begin(), ordered.end(), [](const NamedView* a, const NamedView* b) {
    return size_of(a->view.dtype()) > size_of(b->view.dtype());
  });
  return ordered;
}

/// Nothing where 63 bits do not hold the number.
std::optional<std::int64_t> bytes_of(const ConstTensorView& view) {
  if (has_no_elements(view.shape())) return 0;
  std::optional<std::int64_t> bytes = static_cast<std::int64_t>(size_of(view.dtype()));
  for (const std::int64_t extent : view.shape()) bytes = bytes ? checked_mul(*bytes, extent) : bytes;
  return bytes;
}

/// The entry of a tensor whose bytes begin here.
SafetensorsEntry entry_of(const NamedView& tensor, std::int64_t begin, std::string_view file) {
  const ConstTensorView& view = tensor.view;
  const std::optional<std::int64_t> bytes = bytes_of(view);
  const auto end = bytes ? checked_add(begin, *bytes) : std::nullopt;
  const std::string name = safetensors_printable(tensor.name);
  if (!end) raise<ValueError>("{}: tensor '{}': {} ends beyond 63 bits", file, name, view.shape());
  if (*bytes != 0 && view.data() == nullptr) {
    raise<ValueError>("{}: tensor '{}': the data pointer of {} is null", file, name, view.shape());
  }
  return {.dtype = std::string(safetensors_name(view.dtype())),
          .shape = view.shape(),
          .rank = view.rank(),
          .elements = view.num_elements(),
          .begin = begin,
          .end = *end};
}

SafetensorsHeader header_of(const std::vector<const NamedView*>& tensors, std::string_view file) {
  SafetensorsHeader header;
  std::int64_t begin = 0;
  for (const NamedView* tensor : tensors) {
    const SafetensorsEntry entry = entry_of(*tensor, begin, file);
    begin = entry.end;
    if (tensor->name == "__metadata__") raise<ValueError>("{}: no tensor can be named __metadata__", file);
    if (!header.tensors.emplace(tensor->name, entry).second) {
      raise<ValueError>("{}: tensor '{}' is given twice", file, safetensors_printable(tensor->name));
    }
  }
  return header;
}

void append_prefix(BufferedOutput& output, std::uint64_t length) {
  std::array<std::byte, kSafetensorsPrefix> prefix = {};
  for (std::size_t i = 0; i < prefix.size(); ++i) prefix[i] = static_cast<std::byte>(length >> (8 * i));
  output.append(prefix);
}

void append_elements(BufferedOutput& output, const ConstTensorView& view) {
  if (has_no_elements(view.shape())) return;
  Runs(view).for_each([&](std::span<const std::byte> run) {
    if (view.dtype() != Dtype::kBool) return output.append(run);
    for (const std::byte value : run) output.append_bool(value);
  });
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const std::map<std::string, std::string>& metadata,
                       std::span<const NamedView> tensors) {
  const std::string name = safetensors_printable(path.native(), kSafetensorsMaxPath);
  const std::vector<const NamedView*> ordered = in_order(tensors);
  SafetensorsHeader header = header_of(ordered, name);
  header.metadata = metadata;
  const std::string text = safetensors_header_text(header, name);
  OutputFile file(path);
  BufferedOutput output(file);
  append_prefix(output, text.size());
  output.append(std::as_bytes(std::span(text)));
  for (const NamedView* tensor : ordered) append_elements(output, tensor->view);
  output.flush();
  file.commit();
}

}  // namespace qkv
