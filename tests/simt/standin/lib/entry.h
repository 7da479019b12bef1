// What the stand-in driver must know of a kernel beside its code.
#pragma once

template <class F> struct KernelSignature;
template <class... T> struct KernelSignature<void (*)(Global<T>...)> {
  static constexpr int count = sizeof...(T);
  static constexpr bool written[] = {!WithoutConst<T>::wasConst...};
};

/// extern "C": NAME_host as for GPTC_HOST_ENTRY, NAME_params their number, NAME_written whether it stores to each.
#define GPTC_STANDIN_ENTRY(name)                                                                                       \
  GPTC_HOST_ENTRY(name)                                                                                                \
  extern "C" int name##_params() { return KernelSignature<decltype(&name)>::count; }                                   \
  extern "C" bool name##_written(int i) { return KernelSignature<decltype(&name)>::written[i]; }
