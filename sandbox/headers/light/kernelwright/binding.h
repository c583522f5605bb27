// What `load_inline(functions=...)` writes below a candidate's source, bound without the templates of pybind11.
//
// Here stands what depends on the functions' types. All else, and every conversion, is pybind11's and torch's own,
// compiled once in binding.cpp. A type that is not in the list does not compile, and the source is compiled with the
// whole header then. Included by module.h, at the end of the lean torch/extension.h.
#pragma once

#define KERNELWRIGHT_EACH_CONVERTED(X)                                                                      \
  X(at::Tensor) X(std::optional<at::Tensor>) X(std::vector<at::Tensor>)                                     \
  X(bool) X(short) X(int) X(long) X(long long) X(unsigned int) X(unsigned long) X(unsigned long long)       \
  X(float) X(double) X(std::optional<int64_t>) X(std::optional<double>)                                     \
  X(std::string) X(std::vector<int64_t>) X(std::vector<double>)

namespace kernelwright __attribute__((visibility("hidden"))) {  // every extension has its own

using Object = ::_object*;
struct Call;  // pybind11::detail::function_call

// The argument at `index` as pybind11 converts it; false where it does not fit.
#define KERNELWRIGHT_DECLARE(...)                               \
  bool load(const Call& call, std::size_t index, __VA_ARGS__& into); \
  Object give(__VA_ARGS__ value);                               \
  const char* name_of(const __VA_ARGS__*);
KERNELWRIGHT_EACH_CONVERTED(KERNELWRIGHT_DECLARE)
#undef KERNELWRIGHT_DECLARE
Object give_nothing();
Object give_tuple(std::initializer_list<Object> items);  // takes the items over
Object next_overload();

template <class T> using Bare = std::remove_cv_t<std::remove_reference_t<T>>;

template <class T> struct Result {
  static Object give(T value) { return kernelwright::give(static_cast<T&&>(value)); }  // a reference is copied
  static std::string name() { return name_of(static_cast<const Bare<T>*>(nullptr)); }
};
template <> struct Result<void> {
  static std::string name() { return "None"; }
};
template <class... T> struct Result<std::tuple<T...>> {
  static Object give(std::tuple<T...> value) {
    return std::apply([](T&... item) { return give_tuple({Result<T>::give(static_cast<T&&>(item))...}); }, value);
  }
  static std::string name() {
    std::string found;
    ((found += (found.empty() ? "" : ", ") + Result<T>::name()), ...);
    return "tuple[" + found + "]";
  }
};

struct Function {
  const char* name;
  const char* doc;
  void (*address)();
  Object (*invoke)(void (*address)(), const Call& call);
  std::string signature;  // as pybind11 writes it: each argument in braces
  std::size_t arguments;
};

template <class F> struct Bound;
template <class R, class... A> struct Bound<R (*)(A...)> {
  template <std::size_t... I>
  static Object invoked(void (*address)(), const Call& call, std::index_sequence<I...>) {
    std::tuple<Bare<A>...> held;
    if (!(load(call, I, std::get<I>(held)) && ...)) return next_overload();
    auto function = reinterpret_cast<R (*)(A...)>(address);
    if constexpr (std::is_void_v<R>) {
      function(static_cast<A&&>(std::get<I>(held))...);
      return give_nothing();
    } else {
      return Result<R>::give(function(static_cast<A&&>(std::get<I>(held))...));
    }
  }
  static Object invoke(void (*address)(), const Call& call) {
    return invoked(address, call, std::index_sequence_for<A...>{});
  }
  static std::string signature() {
    std::string found;
    ((found += std::string(found.empty() ? "{" : ", {") + name_of(static_cast<const Bare<A>*>(nullptr)) + "}"), ...);
    return "(" + found + ") -> " + Result<R>::name();
  }
};

class Module {
 public:
  explicit Module(Object module) : module_(module) {}
  template <class R, class... A> void def(const char* name, R (*function)(A...), const char* doc) {
    using As = Bound<R (*)(A...)>;
    add({name, doc, reinterpret_cast<void (*)()>(function), &As::invoke, As::signature(), sizeof...(A)});
  }

 private:
  void add(const Function& function);
  Object module_;
};

struct Entry {
  const char* name;
  void (*bind)(Module&);
};
Object start(const Entry& entry);  // what PyInit_NAME returns

}  // namespace kernelwright
