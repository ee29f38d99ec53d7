#ifndef QKV_TESTS_SUPPORT_GUARDED_H_
#define QKV_TESTS_SUPPORT_GUARDED_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "qkv/tensor.h"
#include "support/elements.h"

namespace qkv::support {

enum class Layout : std::uint8_t {
  kDense,       ///< row-major, off the 64-byte grid
  kPadded,      ///< gaps after every row, the last stride 1
  kStrided,     ///< gaps between all elements
  kTransposed,  ///< the last two axes exchanged in memory
  kReversed,    ///< every stride negative
};
inline constexpr Layout kAllLayouts[] = {Layout::kDense, Layout::kPadded, Layout::kStrided, Layout::kTransposed,
                                         Layout::kReversed};

/// A tensor amid canaries: everything that is not an element, before, between and after, is NaN (a byte pattern for
/// integers), so that a read of it shows in the result and a write in intact(). Elements begin as canaries too: one
/// that an operation forgets to write stays NaN.
class Guarded {
 public:
  Guarded(const Extents& shape, Dtype dtype, Layout layout = Layout::kDense) {
    const Extents strides = strides_for(shape, layout);
    std::int64_t low = 0;
    std::int64_t high = 0;
    for (int axis = 0; axis < shape.size(); ++axis) {
      const std::int64_t reach = std::max<std::int64_t>(0, shape[axis] - 1) * strides[axis];
      (reach < 0 ? low : high) += reach;
    }
    item_ = size_of(dtype);
    const std::int64_t first = kGuard - low;
    memory_.resize(static_cast<std::size_t>(first + high + 1 + kGuard) * item_);
    fill_with_canaries(dtype);
    view_ = TensorView(memory_.data() + static_cast<std::size_t>(first) * item_, dtype, shape, strides);
    before_ = memory_;
  }
  Guarded(Guarded&&) = default;
  Guarded& operator=(Guarded&&) = default;
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  const TensorView& view() const noexcept { return view_; }
  operator TensorView() const noexcept { return view_; }       // NOLINT(google-explicit-constructor)
  operator ConstTensorView() const noexcept { return view_; }  // NOLINT(google-explicit-constructor)

  const Extents& shape() const noexcept { return view_.shape(); }
  Dtype dtype() const noexcept { return view_.dtype(); }
  std::int64_t num_elements() const { return view_.num_elements(); }
  template <class T>
  T* as() const noexcept {
    return view_.as<T>();
  }

  /// Whether nothing but elements of the view was written.
  bool intact() const {
    std::vector<unsigned char> now = memory_;
    const auto base = static_cast<const unsigned char*>(view_.data()) - memory_.data();
    for_each_index(view_.shape(), [&](const Extents& index) {
      const auto at = base + offset_of(view_, index) * static_cast<std::int64_t>(item_);
      std::memcpy(now.data() + at, before_.data() + at, item_);
    });
    return now == before_;
  }

 private:
  // Wider than any vector, and odd: what follows is not aligned to a vector.
  static constexpr std::int64_t kGuard = 67;

  static Extents strides_for(const Extents& shape, Layout layout) {
    Extents strides = shape;
    std::int64_t next = layout == Layout::kStrided ? 3 : 1;
    std::vector<int> order;  // axes from the fastest
    for (int axis = shape.size() - 1; axis >= 0; --axis) order.push_back(axis);
    if (layout == Layout::kTransposed && order.size() >= 2) std::swap(order[0], order[1]);
    for (const int axis : order) {
      strides[axis] = layout == Layout::kReversed ? -next : next;
      next = next * std::max<std::int64_t>(1, shape[axis]) + (layout == Layout::kPadded ? 5 : 0);
    }
    return strides;
  }

  void fill_with_canaries(Dtype dtype) {
    std::fill(memory_.begin(), memory_.end(), static_cast<unsigned char>(0xA5));
    if (dtype == Dtype::kBool) std::fill(memory_.begin(), memory_.end(), static_cast<unsigned char>(1));
    if (dtype == Dtype::kFloat32) fill_nan<float>();
    if (dtype == Dtype::kFloat64) fill_nan<double>();
    if (dtype == Dtype::kFloat16) fill_nan<Float16>();
    if (dtype == Dtype::kBFloat16) fill_nan<BFloat16>();
  }
  template <class T>
  void fill_nan() {
    const T nan(std::numeric_limits<float>::quiet_NaN());
    for (std::size_t at = 0; at < memory_.size(); at += sizeof(T)) std::memcpy(memory_.data() + at, &nan, sizeof(T));
  }

  std::size_t item_ = 0;
  std::vector<unsigned char> memory_;
  std::vector<unsigned char> before_;
  TensorView view_;
};

}  // namespace qkv::support

#endif  // QKV_TESTS_SUPPORT_GUARDED_H_
