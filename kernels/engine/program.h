// A loaded .pte: the signatures of the methods of its base model or of one of its adapters, their constants, and the
// weights, used in place in the mapped file. Immutable after loading, so any number of sequences may use it
// concurrently.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include <executorch/runtime/executor/program.h>

#include "loader.h"
#include "platform.h"
#include "signature.h"

namespace streamfuse {

inline constexpr const char* kXnnpack = "XnnpackBackend";  // the delegate that computes in ExecuTorch's thread pool

class Program {
 public:
  // Throws Failure.
  Program(const std::string& path, int num_threads);
  // The methods of an adapter in the file of `whole`, which are called "ADAPTER.METHOD" there. Shares the mapped file.
  Program(const Program& whole, const std::string& adapter);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  const executorch::runtime::Program& executorch() const { return *program_; }
  std::string name_in_file(const std::string& method) const { return prefix_ + method; }
  const std::map<std::string, Signature>& signatures() const { return signatures_; }
  const Signature& signature(const std::string& name) const;  // throws Failure, which lists the methods
  const Shapes& shapes() const { return shapes_; }
  int threads() const { return threads_; }  // in use; with XNNPACK, may differ from the requested number
  // Threads of this library's own pool that a pass may use; 1 if no method calls this library's operators, its only
  // users.
  int team_threads() const { return calls_own_operators_ ? threads_ : 1; }
  // Throws Failure in a process that was forked after the program was loaded, if a delegate has threads of its own: its
  // passes would wait for ever.
  void check_process() const;
  bool has_vendors_delegate() const { return has_vendors_delegate_; }
  size_t arena_bytes() const { return arena_bytes_; }  // activations of the largest method
  // Number of top layers whose rows are in the order of `kept`; -1 if the program does not define it.
  int64_t num_msa_layers() const { return num_msa_layers_; }
  std::string describe() const;

 private:
  bool verify(const std::string& path) const;  // whether a method calls this library's operators
  void read_methods(const std::string& path);
  executorch::runtime::MethodMeta meta_of(const std::string& method) const;
  void load_constant(const std::string& name);
  std::optional<int64_t> constant(const std::string& name) const;  // a number
  void read_window(const std::string& path);
  void check_backends(const std::string& name);

  int threads_, process_;  // and the process that loaded it
  bool calls_own_operators_ = false;
  std::string prefix_;               // of the names of an adapter's methods in the file
  std::unique_ptr<PoolLease> pool_;  // only with XNNPACK
  std::shared_ptr<Loader> loader_;
  std::shared_ptr<executorch::runtime::Program> program_;
  Shapes shapes_;
  int64_t num_msa_layers_ = -1;
  size_t arena_bytes_ = 0;
  bool has_vendors_delegate_ = false;  // whether a method needs a library of delegates.h
  std::map<std::string, Signature> signatures_;
  std::map<std::string, std::string> constants_;  // as JSON
};

}  // namespace streamfuse
