// vpc-cni as one static file: starts MicroPython, runs the frozen cni_plugin.vpc_cni.main(), and exits (docs/adr/0020).
//
// No path, environment variable or file decides which code runs: the compiler is left out, imports find frozen modules only, and only
// modcni.c reads the environment. If the interpreter fails, this file still prints a CNI error document for the runtime.

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "py/builtin.h"
#include "py/cstack.h"
#include "py/gc.h"
#include "py/lexer.h"
#include "py/runtime.h"
#include "shared/runtime/gchelper.h"

#include "modcni.h"

// Ours: an ordinary call allocates less than half of the first area, so it neither grows the heap nor collects garbage. Untouched
// pages cost nothing. The cap leaves room for about 15 copies of the largest request or reply (4 MiB); a call makes only a few.
#define HEAP_FIRST_BYTES (1 << 20)
#define HEAP_BYTES_MAX (64 << 20)
// Ours: enough, because the plugin does not recurse, and a fraction of the 8 MiB that Linux gives by default.
#define STACK_BYTES (512 << 10)

static char first_area[HEAP_FIRST_BYTES] __attribute__((aligned(64)));
static size_t heap_bytes = HEAP_FIRST_BYTES;

static const char last_words[] =
    "{\"cniVersion\":\"1.1.0\",\"code\":190,\"msg\":\"vpc-cni failed\",\"details\":\"its interpreter could not go on; report this\"}\n";

static void fail(void) {
    // Print nothing after a part of another document: both together would not be valid JSON.
    if (!cni_has_printed && write(STDOUT_FILENO, last_words, sizeof(last_words) - 1) < 0) {
        _exit(2);
    }
    _exit(1);
}

int main(void) {
    signal(SIGPIPE, SIG_IGN); // a closed pipe is an error number, as in CPython
    signal(SIGXFSZ, SIG_IGN); // and so is a file at RLIMIT_FSIZE
    int stack_top;
    mp_cstack_init_with_top(&stack_top, STACK_BYTES);
    gc_init(first_area, first_area + sizeof(first_area));
    mp_init();
    mp_sys_path = mp_obj_new_list(0, NULL);
    mp_obj_list_append(mp_sys_path, MP_OBJ_NEW_QSTR(MP_QSTR__dot_frozen));

    nlr_buf_t nlr;
    if (nlr_push(&nlr) == 0) {
        mp_obj_t wanted = MP_OBJ_NEW_QSTR(MP_QSTR_main);
        mp_obj_t names = mp_obj_new_tuple(1, &wanted);
        mp_obj_t module = mp_import_name(qstr_from_str("cni_plugin.vpc_cni"), names, MP_OBJ_NEW_SMALL_INT(0));
        mp_call_function_0(mp_load_attr(module, MP_QSTR_main)); // leaves through _cni.leave
        nlr_pop();
    } else {
        mp_obj_print_exception(&mp_plat_print, MP_OBJ_FROM_PTR(nlr.ret_val));
    }
    fail();
}

void gc_collect(void) {
    gc_collect_start();
    gc_helper_collect_regs_and_stack();
    gc_collect_end();
}

size_t gc_get_max_new_split(void) {
    return HEAP_BYTES_MAX - heap_bytes;
}

// Each area's size is kept in front of it, in a block that preserves the alignment.
#define AREA_HEAD_BYTES 64

void *heap_area_new(size_t size) {
    char *area = size > gc_get_max_new_split() ? NULL : malloc(size + AREA_HEAD_BYTES);
    if (area == NULL) {
        return NULL;
    }
    memcpy(area, &size, sizeof(size));
    heap_bytes += size;
    return area + AREA_HEAD_BYTES;
}

void heap_area_free(void *area) {
    char *head = (char *)area - AREA_HEAD_BYTES;
    size_t size;
    memcpy(&size, head, sizeof(size));
    heap_bytes -= size;
    free(head);
}

// Replaces MicroPython's utf8_check (by the linker's --wrap), which accepts surrogates, overlong forms and code points above U+10FFFF.
// Source: RFC 3629, section 4.
bool __wrap_utf8_check(const byte *text, size_t length);
bool __wrap_utf8_check(const byte *text, size_t length) {
    size_t position = 0;
    while (position < length) {
        byte first = text[position++];
        if (first < 0x80) {
            continue;
        }
        if (first < 0xC2 || first > 0xF4) {
            return false;
        }
        size_t rest = 1 + (first >= 0xE0) + (first >= 0xF0);
        if (length - position < rest) {
            return false;
        }
        byte lowest = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
        byte highest = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
        if (text[position] < lowest || text[position] > highest) {
            return false;
        }
        for (size_t index = 1; index < rest; index++) {
            if ((text[position + index] & 0xC0) != 0x80) {
                return false;
            }
        }
        position += rest;
    }
    return true;
}

// The functions below are those that MicroPython's core requires of every port.

void mp_hal_stdout_tx_strn_cooked(const char *text, size_t length) {
    // A traceback goes to standard error, because standard output is for the document.
    if (write(STDERR_FILENO, text, length) < 0) {
        return;
    }
}

mp_import_stat_t mp_import_stat(const char *path) {
    (void)path;
    return MP_IMPORT_STAT_NO_EXIST; // there are frozen modules and no others
}

mp_lexer_t *mp_lexer_new_from_file(qstr filename) {
    (void)filename;
    mp_raise_OSError(ENOENT);
}

void nlr_jump_fail(void *value) {
    (void)value;
    fail();
    __builtin_unreachable();
}
