#ifndef QKV_SRC_ATTENTION_ARGUMENTS_H_
#define QKV_SRC_ATTENTION_ARGUMENTS_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/overlap.h"
#include "base/raise.h"
#include "qkv/tensor.h"

namespace qkv::attention_detail {

/// What the axes of an argument are called in errors, and how many it may have.
struct Axes {
  std::string_view names;
  int least = 0;
  int most = 0;
};

/// The arguments of one call, checked one by one in the order in which they are given here: first those that are read
/// and those that are written, each for itself (rank, size, pointer), then against those before, since no written
/// element may belong to another argument.
class Arguments {
 public:
  /// @param function  what every error begins with: "qkv::attention"
  explicit Arguments(std::string_view function) : function_(function) {
    read_.reserve(kUsual);
    written_.reserve(kUsual);
  }

  /// Throws "function: argument: text".
  template <class Exception, class... Args>
  [[noreturn]] void refuse(std::string_view argument, TextFor<Args...> text, const Args&... args) const {
    raise<Exception>("{}: {}: {}", function_, argument, format_text<Args...>(text, args...));
  }

  /// Both return the view with axes.most axes; the new leading ones have extent 1 and stride 0.
  ConstTensorView read(std::string_view name, const ConstTensorView& view, const Axes& axes);
  TensorView written(std::string_view name, const TensorView& view, const Axes& axes);

  void expect_dtype(std::string_view name, const ConstTensorView& view, Dtype expected) const;
  /// float32, float64, float16 or bfloat16.
  void expect_real(std::string_view name, const ConstTensorView& view) const;
  /// The dtype of q (out, parts), or float32 beside 16 bits: what terms of the logits may have.
  void expect_term_dtype(std::string_view name, const ConstTensorView& view, Dtype dtype) const;
  /// `lifted` is what read() or written() returned for `view`.
  void expect_shape(std::string_view name, const ConstTensorView& view, const ConstTensorView& lifted,
                    const Extents& expected, std::string_view axes) const;

  /// A number a head: sinks or alibi_slopes, [num_heads] or [batch, num_heads], a term of logits beside `dtype`.
  /// @return the view with two axes.
  ConstTensorView read_per_head(std::string_view name, const ConstTensorView& view, Dtype dtype, std::int64_t batch,
                                std::int64_t num_heads);

 private:
  struct Seen {
    std::string name;
    Footprint memory;
  };

  Seen check_alone(std::string_view name, const ConstTensorView& view, const Axes& axes) const;
  void check_apart(const Seen& written, const Seen& other) const;

  static constexpr std::size_t kUsual = 4;  ///< q, k, v and one more

  std::string_view function_;
  std::vector<Seen> read_;
  std::vector<Seen> written_;
};

}  // namespace qkv::attention_detail

#endif  // QKV_SRC_ATTENTION_ARGUMENTS_H_
