// A stand-in for an NPU: devices of PyTorch's spare kind, PrivateUse1, whose memory is the CPU's. What makes
// and views memory is below; every other operator runs on the CPU, on copies, by PyTorch's own fallback.

#include <cstdlib>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/histc.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {

constexpr auto NPU = c10::DeviceType::PrivateUse1;

thread_local c10::DeviceIndex current = 0;

c10::DeviceIndex device_count() {
  const char* said = std::getenv("NPU_STANDIN_DEVICES");
  return static_cast<c10::DeviceIndex>(said ? std::atoi(said) : 1);
}

void set_device(c10::DeviceIndex index) {
  TORCH_CHECK(index < device_count(), "there is no device npu:", int(index));
  if (index >= 0) {
    current = index;
  }
}

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto made = c10::GetCPUAllocator()->allocate(bytes);
    made.unsafe_set_device(c10::Device(NPU, current));
    return made;
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return c10::GetCPUAllocator()->raw_deleter();
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

Memory memory;
REGISTER_ALLOCATOR(NPU, &memory)

struct Guard final : c10::impl::NoOpDeviceGuardImpl<NPU> {
  c10::Device exchangeDevice(c10::Device next) const override {
    auto before = getDevice();
    setDevice(next);
    return before;
  }
  c10::Device getDevice() const override {
    return c10::Device(NPU, current);
  }
  void setDevice(c10::Device next) const override {
    set_device(next.index());
  }
  void uncheckedSetDevice(c10::Device next) const noexcept override {
    current = next.index();
  }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return device_count();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return device_count() > 0;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    return at::detail::getDefaultCPUGenerator();
  }
  at::Generator getNewGenerator(c10::DeviceIndex) const override {
    return at::make_generator<at::CPUGeneratorImpl>();
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    c10::DeviceGuard guard(storage.device());
    at::native::resize_bytes_cpu(storage.unsafeGetStorageImpl(), bytes);
  }
};

Hooks hooks;
const bool hooked = (at::RegisterPrivateUse1HooksInterface(&hooks), true);

using Size = c10::IntArrayRef;

c10::ScalarType of(std::optional<c10::ScalarType> dtype) {
  return dtype.value_or(c10::get_default_dtype_as_scalartype());
}

c10::DeviceGuard on(std::optional<c10::Device> device) {
  return c10::DeviceGuard(device.value_or(c10::Device(NPU, current)));
}

at::Tensor empty(
    Size size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>, std::optional<c10::Device> device,
    std::optional<bool>, std::optional<c10::MemoryFormat> format) {
  auto guard = on(device);
  return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), of(dtype), format);
}

at::Tensor empty_strided(
    Size size, Size stride, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
    std::optional<c10::Device> device, std::optional<bool>) {
  auto guard = on(device);
  return at::detail::empty_strided_generic(
      size, stride, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), of(dtype));
}

// The same memory as a CPU tensor.
at::Tensor seen(const at::Tensor& t) {
  return t.is_cpu() ? t : at::from_blob(t.data_ptr(), t.sizes(), t.strides(), t.options().device(c10::kCPU));
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& into, bool) {
  seen(into).copy_(seen(self));
  return into;
}

const at::Tensor& resize_(const at::Tensor& self, Size size, std::optional<c10::MemoryFormat> format) {
  auto guard = on(self.device());
  return at::native::resize_(self, size, format);
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& into) {
  resize_(into, self.sizes(), std::nullopt);
  return copy_from(self, into, false);
}

at::Scalar scalar(const at::Tensor& self) {
  return seen(self).item();
}

// The CPU counts floats alone; transformers counts integers on all that is not a CPU.
at::Tensor histc(const at::Tensor& self, int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  return at::histc(seen(self).to(at::kFloat), bins, min, max).to(self.options());
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("histc", histc);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", scalar);
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("resize_", resize_);
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
  m.impl("set_.source_Storage", TORCH_FN(at::native::set_));
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

extern "C" {
int standin_device_count() {
  return device_count();
}
int standin_current_device() {
  return current;
}
void standin_set_device(int index) {
  current = static_cast<c10::DeviceIndex>(index);
}
}
