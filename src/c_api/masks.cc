#include "qkv/masks.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "c_api/convert.h"
#include "c_api/status.h"
#include "qkv/qkv.h"

namespace qkv::c_api {
namespace {

TensorView mask_of_rank(const qkv_tensor* mask, int rank) {
  const TensorView view = result(mask, "mask");
  if (view.dtype() != Dtype::kBool) raise<DtypeError>("mask: expected bool, got {}", view.dtype());
  if (view.rank() != rank) raise<ShapeError>("mask: expected {} axes, got {}", rank, view.shape());
  return view;
}

/// Copies a dense [rows, columns] mask to wherever the caller wants it.
void copy_mask(const ConstTensorView& from, unsigned char* to, std::int64_t row_stride, std::int64_t column_stride) {
  const std::int64_t rows = from.extent(0);
  const std::int64_t columns = from.extent(from.rank() - 1);
  const auto* source = from.as<unsigned char>();
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) to[i * row_stride + j * column_stride] = source[i * columns + j];
  }
}

}  // namespace
}  // namespace qkv::c_api

using qkv::c_api::guarded;

qkv_status qkv_padding_mask(const int64_t* lengths, size_t num_lengths, const qkv_tensor* mask) {
  return guarded([&] {
    using namespace qkv::c_api;
    if (num_lengths != 0) require(lengths, "lengths");
    const qkv::TensorView to = mask_of_rank(mask, 4);
    if (to.extent(0) != static_cast<std::int64_t>(num_lengths) || to.extent(1) != 1 || to.extent(2) != 1) {
      qkv::raise<qkv::ShapeError>("mask: expected [{}, 1, 1, kv_len], got {}", num_lengths, to.shape());
    }
    const qkv::Tensor dense = qkv::padding_mask({lengths, num_lengths}, to.extent(3));
    copy_mask(dense, to.as<unsigned char>(), to.stride(0), to.stride(3));
  });
}

qkv_status qkv_causal_mask(const int64_t* query_offset, const qkv_tensor* mask) {
  return guarded([&] {
    using namespace qkv::c_api;
    const qkv::TensorView to = mask_of_rank(mask, 2);
    const auto offset = query_offset != nullptr ? std::optional(*query_offset) : std::nullopt;
    const qkv::Tensor dense = qkv::causal_mask(to.extent(0), to.extent(1), offset);
    copy_mask(dense, to.as<unsigned char>(), to.stride(0), to.stride(1));
  });
}
