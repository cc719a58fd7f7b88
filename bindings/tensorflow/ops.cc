// TensorFlow operations that call a function with the memory of their tensors. HerringRead passes
// its inputs. HerringUpdate passes its outputs, which reuse its inputs' memory if nothing else
// needs it. (tf.numpy_function can only return new arrays.) HerringUpdateAsync does not occupy a
// TensorFlow thread while the function waits for other ranks. There may be only one such thread,
// and other ranks may wait for what it would do next. HerringWait does the same, but stateful
// operations do not have to wait for it. The functions are in Python (herring/tensorflow/ops.py).
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "base/continuations.h"
#include "tf_c.h"

namespace {

struct Array {
  void* data;
  int64_t bytes;
  const int64_t* dims;
  int32_t rank;
  int32_t dtype;  // in TensorFlow's numbering
};

// Returns 0, or writes the text of an error.
using Function = int (*)(int64_t call, int32_t count, const Array* arrays, char* text,
                         int64_t room);
Function function = nullptr;

constexpr int kMaxRank = 254;  // TensorFlow's limit

struct StatusDelete {
  void operator()(TF_Status* status) const { TF_DeleteStatus(status); }
};
struct TensorDelete {
  void operator()(TF_Tensor* tensor) const { TF_DeleteTensor(tensor); }
};
using StatusPointer = std::unique_ptr<TF_Status, StatusDelete>;
using TensorPointer = std::unique_ptr<TF_Tensor, TensorDelete>;

// A call as the graph stores it.
struct Call {
  int64_t number = 0;          // of the function's work
  unsigned char copies = 0;    // of an update: copies inputs to outputs first
};

// The tensors of a call and their memory.
class Arrays {
 public:
  explicit Arrays(int count) : dims_(count), arrays_(count) { tensors_.reserve(count); }

  void add(TensorPointer tensor) {
    const size_t i = tensors_.size();
    const int rank = TF_NumDims(tensor.get());
    for (int d = 0; d < rank; ++d) dims_[i].push_back(TF_Dim(tensor.get(), d));
    arrays_[i] = {TF_TensorData(tensor.get()),
                  static_cast<int64_t>(TF_TensorByteSize(tensor.get())), dims_[i].data(), rank,
                  TF_TensorType(tensor.get())};
    tensors_.push_back(std::move(tensor));
  }
  const Array* data() const { return arrays_.data(); }
  int32_t count() const { return static_cast<int32_t>(arrays_.size()); }

 private:
  std::vector<TensorPointer> tensors_;
  std::vector<std::vector<int64_t>> dims_;
  std::vector<Array> arrays_;
};

TensorPointer input(TF_OpKernelContext* context, int index, TF_Status* status) {
  TF_Tensor* tensor = nullptr;
  TF_GetInput(context, index, &tensor, status);
  return TensorPointer(tensor);
}

// Creates the output that takes the place of an input. No tensor object of the input may exist
// while TensorFlow decides whether its memory is needed elsewhere.
TensorPointer output(TF_OpKernelContext* context, const Call& call, int index, TF_Status* status) {
  std::array<int64_t, kMaxRank> dims;
  int rank = 0;
  {
    const TensorPointer from = input(context, index, status);
    if (TF_GetCode(status) != TF_OK) return nullptr;
    rank = TF_NumDims(from.get());
    for (int d = 0; d < rank; ++d) dims[d] = TF_Dim(from.get(), d);
  }
  int forwarded = -1;
  TensorPointer to(TF_ForwardInputOrAllocateOutput(context, &index, 1, index, dims.data(), rank,
                                                   &forwarded, status));
  if (TF_GetCode(status) != TF_OK || forwarded >= 0) return to;
  const size_t bytes = TF_TensorByteSize(to.get());
  if (!call.copies || bytes == 0) return to;
  const TensorPointer from = input(context, index, status);
  if (TF_GetCode(status) == TF_OK) {
    std::memcpy(TF_TensorData(to.get()), TF_TensorData(from.get()), bytes);
  }
  return to;
}

// Returns null if something is wrong, which TensorFlow has been told.
template <bool kUpdates>
std::shared_ptr<Arrays> arrays_of(const Call& call, TF_OpKernelContext* context) {
  const StatusPointer status(TF_NewStatus());
  const int count = TF_NumInputs(context);
  auto arrays = std::make_shared<Arrays>(count);
  for (int i = 0; i < count; ++i) {
    TensorPointer tensor = kUpdates ? output(context, call, i, status.get())
                                    : input(context, i, status.get());
    if (TF_GetCode(status.get()) != TF_OK) {
      TF_OpKernelContext_Failure(context, status.get());
      return nullptr;
    }
    arrays->add(std::move(tensor));
  }
  return arrays;
}

void run(const Call& call, TF_OpKernelContext* context, const Arrays& arrays) {
  char text[4096] = "herring.tensorflow was not imported in this process";
  if (function != nullptr &&
      function(call.number, arrays.count(), arrays.data(), text, sizeof text) == 0) {
    return;
  }
  const StatusPointer status(TF_NewStatus());
  TF_SetStatus(status.get(), TF_UNKNOWN, text);
  TF_OpKernelContext_Failure(context, status.get());
}

template <bool kUpdates>
void compute(void* kernel, TF_OpKernelContext* context) {
  const Call& call = *static_cast<const Call*>(kernel);
  if (const auto arrays = arrays_of<kUpdates>(call, context)) run(call, context, *arrays);
}

// `given` is declared as a callback but is a reference to an argument of the caller, which is gone
// when this returns. So it is copied as the type that it has in TensorFlow's C++. Python checks
// that type in TensorFlow's headers before it uses this operation.
void compute_async(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* given) {
  const Call& call = *static_cast<const Call*>(kernel);
  std::function<void()> done = *reinterpret_cast<std::function<void()>*>(given);
  auto arrays = arrays_of<true>(call, context);
  if (arrays == nullptr) return done();
  herring::Continuations::shared().put([&call, context, done = std::move(done),
                                        arrays = std::move(arrays)]() mutable {
    run(call, context, *arrays);
    arrays.reset();  // so that later operations may take the memory
    done();
  });
}

template <bool kUpdates>
void* create(TF_OpKernelConstruction* construction) {
  auto call = std::make_unique<Call>();
  const StatusPointer status(TF_NewStatus());
  TF_OpKernelConstruction_GetAttrInt64(construction, "call", &call->number, status.get());
  if (kUpdates && TF_GetCode(status.get()) == TF_OK) {
    TF_OpKernelConstruction_GetAttrBool(construction, "copies", &call->copies, status.get());
  }
  if (TF_GetCode(status.get()) == TF_OK) return call.release();
  TF_OpKernelConstruction_Failure(construction, status.get());
  return nullptr;
}

void destroy(void* kernel) { delete static_cast<Call*>(kernel); }

void add_operation(const char* name, bool updates, bool stateful, TF_KernelBuilder* kernel) {
  const StatusPointer status(TF_NewStatus());
  TF_OpDefinitionBuilder* const op = TF_NewOpDefinitionBuilder(name);
  TF_OpDefinitionBuilderAddAttr(op, "call: int");
  if (updates) TF_OpDefinitionBuilderAddAttr(op, "copies: bool");
  TF_OpDefinitionBuilderAddAttr(op,
                                "T: list({bool, int8, int16, int32, int64, uint8, uint16, uint32, "
                                "uint64, half, bfloat16, float, double, complex64, complex128}) "
                                ">= 0");
  TF_OpDefinitionBuilderAddInput(op, "inputs: T");
  if (updates) TF_OpDefinitionBuilderAddOutput(op, "outputs: T");
  if (stateful) TF_OpDefinitionBuilderSetIsStateful(op, true);  // TensorFlow ignores the value
  TF_OpDefinitionBuilderSetShapeInferenceFunction(op, &TF_ShapeInferenceContextSetUnknownShape);
  TF_RegisterOpDefinition(op, status.get());
  TF_RegisterKernelBuilder(name, kernel, status.get());
}

// TensorFlow collects what is registered while it loads the library.
[[gnu::constructor]] void add_operations() {
  const char *const read = "HerringRead", *const update = "HerringUpdate",
                    *const async = "HerringUpdateAsync", *const wait = "HerringWait";
  add_operation(read, false, true,
                TF_NewKernelBuilder(read, "CPU", &create<false>, &compute<false>, &destroy));
  add_operation(update, true, true,
                TF_NewKernelBuilder(update, "CPU", &create<true>, &compute<true>, &destroy));
  add_operation(async, true, true,
                TF_NewAsyncKernelBuilder(async, "CPU", &create<true>, &compute_async, &destroy));
  add_operation(wait, true, false,
                TF_NewAsyncKernelBuilder(wait, "CPU", &create<true>, &compute_async, &destroy));
}

}  // namespace

extern "C" [[gnu::visibility("default")]] void herring_tensorflow_attach(Function calls) {
  function = calls;
}
