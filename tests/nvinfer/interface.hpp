// The binary interface of libnvinfer that TensorRT's Python bindings call: objects, and the order of their virtual functions, of
// TensorRT 8.6, 10.3 and 11. STAND_IN_MAJOR says which. A function that no test needs is a slot: it ends the process with its name.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#define SLOT(name)                                                          \
    virtual void name() {                                                   \
        std::fprintf(stderr, "stand-in libnvinfer: no function " #name "\n"); \
        std::abort();                                                       \
    }
#if STAND_IN_MAJOR < 11
#define SLOT_OF_10(name) SLOT(name)
#define SLOT_OF_11(name)
#else
#define SLOT_OF_10(name)
#define SLOT_OF_11(name) SLOT(name)
#endif

enum Severity : int32_t { INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE };
enum Selector : int32_t { MIN, OPT, MAX };

struct Root {
    virtual ~Root() = default;
};

// An object as the caller has it: it deletes this one, and calls the other one.
template <typename Interface> struct Object {
    explicit Object(Interface *implementation) : implementation(implementation) {}
    virtual ~Object() { delete implementation; }
    Interface *implementation;
};

struct EngineInterface;
struct ContextInterface;
struct InspectorInterface;

#if STAND_IN_MAJOR < 10
#include "interface_8.hpp"
#else
#include "interface_10.hpp"
#endif
