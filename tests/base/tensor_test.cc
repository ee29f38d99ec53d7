#include "qkv/tensor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "qkv/error.h"
#include "support/elements.h"

namespace qkv {
namespace {

constexpr std::int64_t kHuge = std::int64_t{1} << 40;

TEST(Extents, HoldsUpToEightNumbers) {
  const Extents extents{1, 2, 3};
  EXPECT_EQ(extents.size(), 3);
  EXPECT_EQ(extents[2], 3);
  EXPECT_EQ(to_string(extents), "[1, 2, 3]");
  EXPECT_EQ(to_string(Extents{}), "[]");
  EXPECT_TRUE(extents == (Extents{1, 2, 3}));
  EXPECT_FALSE(extents == (Extents{1, 2}));
  EXPECT_EQ((Extents{1, 1, 1, 1, 1, 1, 1, 1}).size(), 8);
  EXPECT_THROW((Extents{1, 1, 1, 1, 1, 1, 1, 1, 1}), ShapeError);
}

TEST(DenseStrides, AreRowMajor) {
  EXPECT_EQ(to_string(dense_strides({2, 3, 4})), "[12, 4, 1]");
  EXPECT_EQ(to_string(dense_strides({})), "[]");
  EXPECT_THROW(dense_strides({2, -1}), ShapeError);
  EXPECT_THROW(dense_strides({kHuge, kHuge}), ShapeError);
  EXPECT_NO_THROW(dense_strides({kHuge, kHuge, 0})) << "an empty tensor has no addresses that could overflow";
}

TEST(View, CountsElements) {
  float x = 0;
  EXPECT_EQ(view(&x, {2, 3, 4}).num_elements(), 24);
  EXPECT_EQ(view(&x, {}).num_elements(), 1);
  EXPECT_EQ(view(&x, {kHuge, kHuge, 0}).num_elements(), 0);
  EXPECT_THROW(view(&x, {kHuge, kHuge}, {0, 0}).num_elements(), ShapeError);
}

TEST(View, RefusesWhatIsNoShape) {
  float x = 0;
  EXPECT_THROW(view(&x, {2, 3}, {1}), ShapeError);
  EXPECT_THROW(view(&x, {-1}, {1}), ShapeError);
}

TEST(View, KnowsItsType) {
  const double x = 0;
  bool y = false;
  EXPECT_EQ(view(&x, {1}).dtype(), Dtype::kFloat64);
  EXPECT_EQ(view(&y, {1}).dtype(), Dtype::kBool);
  EXPECT_EQ(view(&y, {1}).as<bool>(), &y);
}

TEST(View, PermuteReordersStrides) {
  std::vector<float> data(24);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
  const TensorView whole = view(data.data(), {2, 3, 4});
  const TensorView permuted = whole.permute({2, 0, 1});
  EXPECT_EQ(to_string(permuted.shape()), "[4, 2, 3]");
  EXPECT_EQ(support::read(permuted, {3, 1, 2}), support::read(whole, {1, 2, 3}));
  EXPECT_THROW(whole.permute({0, 1}), ShapeError);
  EXPECT_THROW(whole.permute({0, 1, 1}), ShapeError);
  EXPECT_THROW(whole.permute({0, 1, 3}), ShapeError);
  EXPECT_THROW(whole.permute({0, 1, -1}), ShapeError);
}

TEST(View, SliceMovesThePointer) {
  std::vector<double> data(24);
  const TensorView whole = view(data.data(), {2, 3, 4});
  const TensorView part = whole.slice(1, 1, 3);
  EXPECT_EQ(to_string(part.shape()), "[2, 2, 4]");
  EXPECT_EQ(part.data(), &data[4]);
  EXPECT_EQ(part.stride(0), 12);
  EXPECT_EQ(whole.slice(1, 3, 3).num_elements(), 0);
  EXPECT_THROW(whole.slice(1, 2, 4), ShapeError);
  EXPECT_THROW(whole.slice(1, 2, 1), ShapeError);
  EXPECT_THROW(whole.slice(1, -1, 1), ShapeError);
  EXPECT_THROW(whole.slice(3, 0, 1), ShapeError);
  EXPECT_THROW(whole.slice(-1, 0, 1), ShapeError);
}

TEST(View, SliceOffsetsAre64Bit) {
  float x = 0;
  // Only addresses are made: nothing is read.
  const ConstTensorView wide = view(static_cast<const float*>(&x), {8, 2}, {std::int64_t{1} << 33, 1});
  const auto distance = static_cast<const char*>(wide.slice(0, 1, 2).data()) - static_cast<const char*>(wide.data());
  EXPECT_EQ(distance, std::int64_t{4} << 33);
  const ConstTensorView wider = view(static_cast<const float*>(&x), {8}, {std::numeric_limits<std::int64_t>::max()});
  EXPECT_THROW(wider.slice(0, 2, 3), ShapeError);
}

TEST(View, BroadcastRepeatsWithStrideZero) {
  std::vector<float> data{1, 2, 3};
  const ConstTensorView row = view(data.data(), {3, 1});
  const ConstTensorView wide = row.broadcast_to({2, 3, 4});
  EXPECT_EQ(to_string(wide.strides()), "[0, 1, 0]");
  EXPECT_EQ(support::read(wide, {1, 2, 3}), 3);
  EXPECT_EQ(to_string(ConstTensorView(view(data.data(), {})).broadcast_to({2}).strides()), "[0]");
  EXPECT_EQ(row.broadcast_to({3, 0}).num_elements(), 0);
  EXPECT_THROW(row.broadcast_to({2, 2, 4}), ShapeError);
  EXPECT_THROW(row.broadcast_to({3}), ShapeError);
  EXPECT_THROW(row.broadcast_to({3, -1}), ShapeError);
}

TEST(Tensor, IsZeroedAlignedAndDense) {
  Tensor tensor({3, 5}, Dtype::kFloat32);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.as<float>()) % 64, 0U);
  EXPECT_EQ(to_string(tensor.view().strides()), "[5, 1]");
  for (int i = 0; i < 15; ++i) EXPECT_EQ(tensor.as<float>()[i], 0);
}

TEST(Tensor, CloneIsMemoryOfItsOwn) {
  Tensor tensor = support::tensor_of({2, 2}, Dtype::kFloat64, {1, 2, 3, 4});
  const Tensor copy = tensor.clone();
  tensor.as<double>()[3] = 9;
  EXPECT_NE(copy.as<double>(), tensor.as<double>());
  EXPECT_EQ(copy.as<double>()[3], 4);
  EXPECT_EQ(Tensor().clone().as<float>(), nullptr);
}

TEST(Tensor, MovesItsMemory) {
  Tensor tensor = support::tensor_of({2}, Dtype::kFloat32, {1, 2});
  const float* memory = tensor.as<float>();
  const Tensor moved = std::move(tensor);
  EXPECT_EQ(moved.as<float>(), memory);
  EXPECT_EQ(moved.as<float>()[1], 2);
  EXPECT_EQ(tensor.as<float>(), nullptr) << "a moved-from tensor still shows memory that it gave away";  // NOLINT
}

TEST(Tensor, SizesAreChecked) {
  EXPECT_THROW(Tensor({kHuge, kHuge}, Dtype::kFloat32), ShapeError);
  EXPECT_THROW(Tensor({kHuge, std::int64_t{1} << 21}, Dtype::kFloat64), ShapeError) << "elements fit, bytes do not";
  EXPECT_THROW(Tensor({-1}, Dtype::kFloat32), ShapeError);
  EXPECT_EQ(Tensor({0, 4}, Dtype::kFloat32).num_elements(), 0);
}

}  // namespace
}  // namespace qkv
