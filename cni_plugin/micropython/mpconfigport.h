// Choose the parts of MicroPython that `vpc-cni` contains: only those that the modules of cni_plugin use, and none that read files,
// compile source or read the environment. The names are MicroPython's, and py/mpconfig.h documents them.

#include <alloca.h>
#include <stdint.h>

#define MICROPY_CONFIG_ROM_LEVEL (MICROPY_CONFIG_ROM_LEVEL_CORE_FEATURES)

// The binary runs its own frozen bytecode only.
#define MICROPY_ENABLE_COMPILER (0)
#define MICROPY_PERSISTENT_CODE_LOAD (0)
#define MICROPY_READER_POSIX (0)
#define MICROPY_READER_VFS (0)
#define MICROPY_ALLOC_PATH_MAX (256)

#define MICROPY_ENABLE_GC (1)
#define MICROPY_GC_SPLIT_HEAP (1)
#define MICROPY_GC_SPLIT_HEAP_AUTO (1) // a fixed heap is too small for the largest requests, or too large for all others
#define MP_PLAT_ALLOC_HEAP(size) heap_area_new(size)
#define MP_PLAT_FREE_HEAP(area) heap_area_free(area)
void *heap_area_new(__SIZE_TYPE__ size);
void heap_area_free(void *area);
#define MICROPY_STACK_CHECK (1)
#define MICROPY_STACK_CHECK_MARGIN (4096)

#define MICROPY_LONGINT_IMPL (MICROPY_LONGINT_IMPL_MPZ)
#define MPZ_DIG_SIZE (16) // the default on 64-bit machines needs a type that is not in standard C
#define MICROPY_FLOAT_IMPL (MICROPY_FLOAT_IMPL_NONE)

// bytes.decode() refuses bytes that are not UTF-8, as in CPython. The strict check is in main.c.
#define MICROPY_PY_BUILTINS_STR_UNICODE (1)
#define MICROPY_PY_BUILTINS_STR_UNICODE_CHECK (1)

#define MICROPY_PY_SYS (1)
#define MICROPY_PY_SYS_PATH (1) // frozen modules are found through it; main.c puts ".frozen" there and nothing else
#define MICROPY_PY_SYS_MODULES (1)
#define MICROPY_PY_SYS_EXIT (0)
#define MICROPY_PY_SYS_ARGV (0)
#define MICROPY_PY_IO (0)
#define MICROPY_PY_GC (0)
#define MICROPY_PY_MATH (0)
#define MICROPY_PY_ARRAY (0)
#define MICROPY_PY_STRUCT (0)
#define MICROPY_PY_MICROPYTHON (0)
#define MICROPY_PY_COLLECTIONS (0)
#define MICROPY_PY_ASYNC_AWAIT (0)

#define MICROPY_ERROR_REPORTING (MICROPY_ERROR_REPORTING_NORMAL)
#define MICROPY_USE_INTERNAL_ERRNO (0) // the plugin's error numbers are Linux's

typedef intptr_t mp_int_t;
typedef uintptr_t mp_uint_t;
typedef long mp_off_t;

#define MICROPY_HW_BOARD_NAME "vpc-cni"
#define MICROPY_HW_MCU_NAME "linux"

#define MP_STATE_PORT MP_STATE_VM
