// What every extension with the lean header is linked with: pybind11 and torch's conversions, behind plain functions.
//
// A function is registered with pybind11's own dispatcher, so that overloads, messages and documentation are its own.
#define KERNELWRIGHT_PYBIND
#include <kernelwright/core.h>
#define KERNELWRIGHT_INSIDE
#define AT_PER_OPERATOR_HEADERS
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>
#include <kernelwright/binding.h>

namespace py = pybind11;

namespace kernelwright {
namespace {

Entry entry;

const py::detail::function_call& of(const Call& call) {
  return reinterpret_cast<const py::detail::function_call&>(call);
}

py::handle called(py::detail::function_call& call) {
  HANDLE_TH_ERRORS
  auto invoke = reinterpret_cast<Object (*)(void (*)(), const Call&)>(call.func.data[1]);
  return invoke(reinterpret_cast<void (*)()>(call.func.data[0]), reinterpret_cast<const Call&>(call));
  END_HANDLE_TH_ERRORS_PYBIND
}

struct Registered : py::cpp_function {
  Registered(const py::module_& module, const Function& function) {
    using namespace py::detail;
    static const std::type_info* const no_types[] = {nullptr};
    py::object before = py::getattr(module, function.name, py::none());
    auto record = make_function_record();
    record->data[0] = reinterpret_cast<void*>(function.address);
    record->data[1] = reinterpret_cast<void*>(function.invoke);
    record->impl = called;
    record->nargs_pos = static_cast<std::uint16_t>(function.arguments);
    process_attributes<py::name, py::scope, py::sibling, const char*>::init(
        py::name(function.name), py::scope(module), py::sibling(before), function.doc, record.get());
    initialize_generic(std::move(record), function.signature.c_str(), no_types, function.arguments);
  }
};

}  // namespace

#define KERNELWRIGHT_DEFINE(...)                                                             \
  bool load(const Call& call, std::size_t index, __VA_ARGS__& into) {                        \
    py::detail::make_caster<__VA_ARGS__> caster;                                             \
    if (!caster.load(of(call).args[index], of(call).args_convert[index])) return false;      \
    into = py::detail::cast_op<__VA_ARGS__&&>(std::move(caster));                            \
    return true;                                                                             \
  }                                                                                          \
  Object give(__VA_ARGS__ value) {                                                           \
    using py::return_value_policy;                                                           \
    return py::detail::make_caster<__VA_ARGS__>::cast(                                       \
        std::move(value), return_value_policy::move, py::handle()).ptr();                    \
  }                                                                                          \
  const char* name_of(const __VA_ARGS__*) { return py::detail::make_caster<__VA_ARGS__>::name.text; }
KERNELWRIGHT_EACH_CONVERTED(KERNELWRIGHT_DEFINE)
#undef KERNELWRIGHT_DEFINE

Object give_nothing() { return py::none().release().ptr(); }

Object give_tuple(std::initializer_list<Object> items) {
  std::vector<py::object> owned;
  for (Object item : items) owned.push_back(py::reinterpret_steal<py::object>(item));
  py::tuple found(owned.size());
  for (std::size_t i = 0; i < owned.size(); ++i) {
    if (!owned[i]) return nullptr;
    found[i] = std::move(owned[i]);
  }
  return found.release().ptr();
}

Object next_overload() { return PYBIND11_TRY_NEXT_OVERLOAD; }

void Module::add(const Function& function) {
  auto module = py::reinterpret_borrow<py::module_>(module_);
  module.add_object(function.name, Registered(module, function), true);
}

}  // namespace kernelwright

// Before the macro, whose own declaration shows it to every other extension of the process.
extern "C" __attribute__((visibility("hidden"))) PyObject* PyInit_kernelwright_extension();

PYBIND11_MODULE(kernelwright_extension, found) {
  found.attr("__name__") = kernelwright::entry.name;
  kernelwright::Module module(found.ptr());
  kernelwright::entry.bind(module);
}

namespace kernelwright {
Object start(const Entry& wanted) {
  entry = wanted;
  return PyInit_kernelwright_extension();
}
}  // namespace kernelwright
