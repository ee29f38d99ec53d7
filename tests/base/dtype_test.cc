#include "qkv/dtype.h"

#include <gtest/gtest.h>

#include "base/raise.h"

namespace qkv {
namespace {

TEST(Dtype, SizesAreThoseOfTheTypes) {
  EXPECT_EQ(size_of(Dtype::kBool), 1U);
  EXPECT_EQ(size_of(Dtype::kUInt8), 1U);
  EXPECT_EQ(size_of(Dtype::kInt8), 1U);
  EXPECT_EQ(size_of(Dtype::kInt16), 2U);
  EXPECT_EQ(size_of(Dtype::kInt32), 4U);
  EXPECT_EQ(size_of(Dtype::kInt64), 8U);
  EXPECT_EQ(size_of(Dtype::kFloat16), 2U);
  EXPECT_EQ(size_of(Dtype::kBFloat16), 2U);
  EXPECT_EQ(size_of(Dtype::kFloat32), 4U);
  EXPECT_EQ(size_of(Dtype::kFloat64), 8U);
}

TEST(Dtype, NamesAreThoseOfNumpy) {
  EXPECT_EQ(name_of(Dtype::kBool), "bool");
  EXPECT_EQ(name_of(Dtype::kUInt8), "uint8");
  EXPECT_EQ(name_of(Dtype::kInt8), "int8");
  EXPECT_EQ(name_of(Dtype::kInt16), "int16");
  EXPECT_EQ(name_of(Dtype::kInt32), "int32");
  EXPECT_EQ(name_of(Dtype::kInt64), "int64");
  EXPECT_EQ(name_of(Dtype::kFloat16), "float16");
  EXPECT_EQ(name_of(Dtype::kBFloat16), "bfloat16");
  EXPECT_EQ(name_of(Dtype::kFloat32), "float32");
  EXPECT_EQ(name_of(Dtype::kFloat64), "float64");
}

TEST(Raise, FormatsShapesAndDtypes) {
  try {
    raise<DtypeError>("{}: {} of {}", "k", Dtype::kInt8, Extents{2, 3});
    FAIL() << "did not throw";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "k: int8 of [2, 3]");
  }
}

}  // namespace
}  // namespace qkv
