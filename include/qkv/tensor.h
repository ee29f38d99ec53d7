#ifndef QKV_TENSOR_H_
#define QKV_TENSOR_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "qkv/dtype.h"
#include "qkv/export.h"

namespace qkv {

/// Most axes that a view can have.
inline constexpr int kMaxRank = 8;

/// A list of at most kMaxRank 64-bit numbers, held inline: the shape or the strides of a view.
class QKV_API Extents {
 public:
  Extents() = default;
  Extents(std::initializer_list<std::int64_t> values);
  explicit Extents(std::span<const std::int64_t> values);

  int size() const noexcept { return size_; }
  std::int64_t operator[](int axis) const noexcept { return values_[static_cast<std::size_t>(axis)]; }
  std::int64_t& operator[](int axis) noexcept { return values_[static_cast<std::size_t>(axis)]; }
  const std::int64_t* begin() const noexcept { return values_.data(); }
  const std::int64_t* end() const noexcept { return values_.data() + size_; }
  friend bool operator==(const Extents& a, const Extents& b) noexcept {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  std::array<std::int64_t, kMaxRank> values_ = {};
  int size_ = 0;
};

/// "[2, 8, 128, 64]"
QKV_API std::string to_string(const Extents& extents);

/// A read-only look at somebody else's memory: where, of what type, which shape and which strides (in elements; 0 and
/// negative ones are legal). Type-erased, copied freely, never owns: the memory must outlive every use of the view.
class QKV_API ConstTensorView {
 public:
  ConstTensorView() = default;
  /// @throws ShapeError if the ranks of shape and strides differ or an extent is negative.
  ConstTensorView(const void* data, Dtype dtype, const Extents& shape, const Extents& strides);

  const void* data() const noexcept { return data_; }
  Dtype dtype() const noexcept { return dtype_; }
  int rank() const noexcept { return shape_.size(); }
  const Extents& shape() const noexcept { return shape_; }
  const Extents& strides() const noexcept { return strides_; }
  std::int64_t extent(int axis) const noexcept { return shape_[axis]; }
  std::int64_t stride(int axis) const noexcept { return strides_[axis]; }
  /// Number of elements; 1 for rank 0. @throws ShapeError where it does not fit 63 bits.
  std::int64_t num_elements() const;
  /// The elements as T; the caller has checked dtype().
  template <class T>
  const T* as() const noexcept {
    return static_cast<const T*>(data_);
  }

  /// Axis i of the result is axis order[i] of this view. @throws ShapeError unless order is a permutation.
  ConstTensorView permute(const Extents& order) const;
  /// The sub-view [begin, end) along one axis. @throws ShapeError outside of the axis.
  ConstTensorView slice(int axis, std::int64_t begin, std::int64_t end) const;
  /// NumPy broadcasting: new leading axes and axes of extent 1 repeat with stride 0. @throws ShapeError if it cannot.
  ConstTensorView broadcast_to(const Extents& shape) const;

 private:
  const void* data_ = nullptr;
  Dtype dtype_ = Dtype::kFloat32;
  Extents shape_;
  Extents strides_;
};

/// The same, writable.
class QKV_API TensorView {
 public:
  TensorView() = default;
  TensorView(void* data, Dtype dtype, const Extents& shape, const Extents& strides)
      : view_(data, dtype, shape, strides), data_(data) {}

  operator ConstTensorView() const noexcept { return view_; }  // NOLINT(google-explicit-constructor)

  void* data() const noexcept { return data_; }
  Dtype dtype() const noexcept { return view_.dtype(); }
  int rank() const noexcept { return view_.rank(); }
  const Extents& shape() const noexcept { return view_.shape(); }
  const Extents& strides() const noexcept { return view_.strides(); }
  std::int64_t extent(int axis) const noexcept { return view_.extent(axis); }
  std::int64_t stride(int axis) const noexcept { return view_.stride(axis); }
  std::int64_t num_elements() const { return view_.num_elements(); }
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }

  TensorView permute(const Extents& order) const;
  TensorView slice(int axis, std::int64_t begin, std::int64_t end) const;

 private:
  TensorView(void* data, const ConstTensorView& view) : view_(view), data_(data) {}
  ConstTensorView view_;
  void* data_ = nullptr;
};

/// Strides, in elements, of a dense row-major tensor of this shape.
QKV_API Extents dense_strides(const Extents& shape);

/// A dense row-major view of memory of type T: `view(q.data(), {batch, num_heads, q_len, head_dim})`.
template <class T>
ConstTensorView view(const T* data, const Extents& shape) {
  return {data, kDtypeOf<T>, shape, dense_strides(shape)};
}
/// The same, to be written.
template <class T>
TensorView view(T* data, const Extents& shape) {
  return {data, kDtypeOf<T>, shape, dense_strides(shape)};
}
/// A view with strides of its own, in elements.
template <class T>
ConstTensorView view(const T* data, const Extents& shape, const Extents& strides) {
  return {data, kDtypeOf<T>, shape, strides};
}
/// The same, to be written.
template <class T>
TensorView view(T* data, const Extents& shape, const Extents& strides) {
  return {data, kDtypeOf<T>, shape, strides};
}

/// Owns a dense row-major block of zeroed memory, aligned to 64 bytes. Moves; copies only by clone(), so that a copy
/// is always seen in the code.
class QKV_API Tensor {
 public:
  Tensor() = default;
  /// @throws ShapeError if an extent is negative or the size does not fit; std::bad_alloc without memory.
  Tensor(const Extents& shape, Dtype dtype);
  /// Leaves the other as a default-made tensor: no memory, no view of it.
  Tensor(Tensor&& other) noexcept
      : memory_(std::move(other.memory_)), view_(std::exchange(other.view_, TensorView())) {}
  Tensor& operator=(Tensor&& other) noexcept {
    memory_ = std::move(other.memory_);
    view_ = std::exchange(other.view_, TensorView());
    return *this;
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  Tensor clone() const;

  TensorView view() noexcept { return view_; }
  ConstTensorView view() const noexcept { return view_; }
  operator TensorView() noexcept { return view_; }             // NOLINT(google-explicit-constructor)
  operator ConstTensorView() const noexcept { return view_; }  // NOLINT(google-explicit-constructor)

  const Extents& shape() const noexcept { return view_.shape(); }
  Dtype dtype() const noexcept { return view_.dtype(); }
  std::int64_t num_elements() const { return view_.num_elements(); }
  template <class T>
  T* as() noexcept {
    return view_.as<T>();
  }
  template <class T>
  const T* as() const noexcept {
    return view_.as<T>();
  }

 private:
  struct Free {
    void operator()(void* memory) const noexcept;
  };
  std::unique_ptr<void, Free> memory_;
  TensorView view_;
};

}  // namespace qkv

#endif  // QKV_TENSOR_H_
