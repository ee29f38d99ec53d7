"""The benchmarks of qkv: `./dev bench` runs them, `./dev bench --help` explains them."""
