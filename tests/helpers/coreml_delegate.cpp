// Stands in for ExecuTorch's Core ML delegate where there is no Core ML: it finds the program as that one does, and
// hands every pass to tests/helpers/coreml_delegate.py, which loads it.
#include <executorch/runtime/backend/interface.h>

#include <cstdint>
#include <string>
#include <vector>

namespace {

using executorch::runtime::ArrayRef;
using executorch::runtime::BackendExecutionContext;
using executorch::runtime::BackendInitContext;
using executorch::runtime::CompileSpec;
using executorch::runtime::DelegateHandle;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::FreeableBuffer;
using executorch::runtime::Result;
using executorch::runtime::Span;

struct Value {
  int32_t type, dims;
  const int32_t* sizes;
  void* data;
};
using Open = int (*)(const char* method, const char* reference, const void* program, size_t bytes);
using Run = int (*)(int function, const Value* values, int count);
Open open_program = nullptr;
Run run_function = nullptr;

struct Delegate final : executorch::runtime::BackendInterface {
  bool is_available() const override { return true; }

  Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer* processed,
                               ArrayRef<CompileSpec>) const override {
    const std::string reference(static_cast<const char*>(processed->data()), processed->size());
    const size_t start = reference.find('"', reference.find("\"key\":") + 6) + 1;
    const std::string key = reference.substr(start, reference.find('"', start) - start);
    Result<FreeableBuffer> program = context.get_named_data_map()->get_data(key.c_str());
    if (!program.ok()) return program.error();
    int* handle = context.get_runtime_allocator()->allocateInstance<int>();
    *handle = open_program(context.get_method_name(), reference.c_str(), program->data(), program->size());
    processed->Free();
    return handle;
  }

  Error execute(BackendExecutionContext&, DelegateHandle* handle, Span<EValue*> arguments) const override {
    std::vector<Value> values;
    for (EValue* argument : arguments) {
      const auto& tensor = argument->toTensor();
      values.push_back({static_cast<int32_t>(tensor.scalar_type()), static_cast<int32_t>(tensor.dim()),
                        tensor.sizes().data(), tensor.mutable_data_ptr()});
    }
    const int failed = run_function(*static_cast<int*>(handle), values.data(), static_cast<int>(values.size()));
    return failed ? Error::Internal : Error::Ok;
  }
};

Delegate delegate;
const Error registered = executorch::runtime::register_backend({"CoreMLBackend", &delegate});

}  // namespace

extern "C" int set_functions(Open open, Run run) {
  open_program = open;
  run_function = run;
  return registered == Error::Ok ? 0 : 1;
}
