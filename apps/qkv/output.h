#ifndef QKV_APPS_OUTPUT_H_
#define QKV_APPS_OUTPUT_H_

#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>

namespace qkv::cli {

/// What has been printed did not arrive: a full disk, a closed file, a pipe that nobody reads.
class OutputError : public std::runtime_error {
 public:
  explicit OutputError(int error_number);
  bool is_broken_pipe() const noexcept { return is_broken_pipe_; }

 private:
  bool is_broken_pipe_;
};

enum class Color { kGreen, kRed, kDim };

/// A file to print to. Lines appear at once, also in a pipe.
class Output {
 public:
  explicit Output(std::FILE* file);

  /// Colours are for a terminal, unless NO_COLOR is set (https://no-color.org) or the terminal is dumb.
  bool has_color() const noexcept { return has_color_; }
  bool is_terminal() const noexcept { return is_terminal_; }

  /// The text, in this colour where there are colours.
  std::string paint(Color color, std::string_view text) const;

  /// @throws OutputError
  void write(std::string_view text);

 private:
  std::FILE* file_;
  bool is_terminal_;
  bool has_color_;
};

}  // namespace qkv::cli

#endif  // QKV_APPS_OUTPUT_H_
