"""What `./dev bench --help` and the help of each verb teach."""

from __future__ import annotations

DESCRIPTION = """\
Measures qkv on this machine, beside PyTorch, ONNX Runtime and OpenVINO where they are installed.

  attention   times of all cases, and with them memory, tiny calls, accuracy and a whole model; --dtype for 16 bits
  ragged      sequences of unequal length without padding, beside the same ones padded
  decode      one query row against a long cache that lies in memory, beside what memory can deliver
  generate    one token after the other, with a cache and computing everything anew
  rope        rotary positions, beside what memory can copy
  check       all of it, compared with the figures that this project holds itself to (benchmarks/targets.json)
  report      writes the tables and the chart of docs/performance.md from JSON files of these
"""
ATTENTION = """\
Times attention, shape by shape and option by option: float32, or with --dtype what is stored in 16 bits.

Every runner's result is compared with qkv's before it is timed. Then all runners and the peak of the machine take
turns, 5 rounds of at least 30 ms each; figures are medians over the rounds. With one thread the time is CPU time of the
process, so that other programs hardly disturb it; with more it is wall time, which wants a quiet machine.

  GFLOP/s      4 * batch * heads * visible pairs * dim operations a second: hidden keys do not count as work
  of peak      share of what one thread reaches in the same round if it only multiplies and adds, times threads
  of dot peak  the same for dot products of bfloat16, where the CPU has an instruction for them
  torch / qkv  the other's time / ours: above 1 we are faster; "qkv float32 / qkv" is ourselves, on the same numbers
"""
ATTENTION_END = """\
examples:
  ./dev bench attention --quick                      a few minutes, without the longest sequences
  ./dev bench attention --only 'x2048x.*causal'      some cases; the table names them all
  ./dev bench attention --threads 1 2 4 --only 4096
  ./dev bench attention --dtype bfloat16             eight cases, beside float32 and whoever has bfloat16 here
  QKV_TARGET=avx2 ./dev bench attention              another instruction set, with its own peak
"""
RAGGED = """\
Times qkv.attention_varlen on 32 sequences of 1 to 512 tokens, 8 heads of 64, and qkv.attention on the same sequences
padded to 512 with kv_lens. GFLOP/s count visible work, so equal figures mean that the time follows the work. One
thread, CPU time.
"""
DECODE = """\
Times one query row for one sequence against a cache of 8192 or 32768 tokens: 8 heads of 64, and 32 query heads that
share 8 heads of keys and values of 128; stored as float32, bfloat16 and int8; with one thread and with two.

The caches of a case together are several times as large as the processor's own, and are visited in turn: every call
reads its keys and values from memory. In the same rounds a loop that does nothing but read is timed, with as many
threads.

  GB/s         bytes of K and V, and of the scales of int8, a second; each counts once, however many heads share it
  of reading   share of what the loop reads
  torch / qkv  the other's time / ours: above 1 we are faster

One thread is timed by CPU time, more by wall time. Then: what it costs to append one token to a cache.
"""
DECODE_END = """\
examples:
  ./dev bench decode                        2 minutes, and 2 GiB of memory or more, as the processor has caches
  ./dev bench decode --quick                caches of 8192 tokens alone
  ./dev bench decode --only 'kv8192-bfloat16' --threads 1
"""
GENERATE = """\
Generates tokens one after the other with one layer of attention, 8 heads of 64, at several lengths: appending to a
cache and attending to it, and computing all rows anew for each token. One thread, CPU time. And how large caches are,
by how many query heads share keys and values.
"""
ROPE = """\
Times qkv.position.Rope on 32 heads of 2048 rows of 128 columns in float32 and bfloat16, in both layouts, from one array
to another. The arrays of a case together are several times as large as the processor's caches, and are visited in turn.
In the same rounds a loop is timed that reads and writes the same arrays and adds 1 to each number. One thread, CPU
time.

  GB/s         bytes read and written a second
  of copying   share of what the loop reads and writes
"""
CHECK = """\
Measures all suites in 5 rounds, and what stands beside them, and compares the medians with benchmarks/targets.json.

Prints a line for each target: what was measured, what is wanted, and whether it is ok, short, or not measurable here
(another instruction set, a missing peer, a machine that is too busy for times of several threads). Targets of another
instruction set that this CPU has run in a process with QKV_TARGET set. Exit status 1: a target is short.
"""
CHECK_END = """\
examples:
  ./dev bench check --json build/bench.json
  ./dev bench check --factor 0.6              on a machine shared with others: lower limits are multiplied by it, upper
                                              ones divided; those of memory and accuracy stay as they are
  ./dev bench check --from build/bench.json   another look at the same figures
  ./dev bench check --from a.json b.json      what several suites have measured on this machine
"""
REPORT = """\
Writes the tables of docs/performance.md, between its markers, and the chart docs/img/attention.svg from JSON files that
--json has written. Tables of suites that are in none of the files stay, as whatever stands outside the markers does.
"""
REPORT_END = """\
examples:
  ./dev bench report build/bench.json
  ./dev bench report build/half.json build/decode.json      these tables alone
"""
