// The module `_cni` for MicroPython: the few system calls of the plugin. cni_plugin/_cni.py has the same functions for CPython, and
// documents them. Failures are OSError with an errno; an expired wait is ETIMEDOUT.

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "py/objtuple.h"
#include "py/runtime.h"

#include "modcni.h"

bool cni_has_printed;

static long checked(long result) {
    if (result < 0) {
        mp_raise_OSError(errno);
    }
    return result;
}

static long long clock_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static long long monotonic_ns(void) {
    return clock_ns(CLOCK_MONOTONIC);
}

static void wait_for(int fd, short event, long long wait_ms) {
    long long deadline_ms = monotonic_ns() / 1000000 + wait_ms;
    for (;;) {
        // poll takes an int, so the wait is cut to 1000 s, which is far above every deadline of the plugin
        struct pollfd waited = {.fd = fd, .events = event};
        int found = poll(&waited, 1, wait_ms <= 0 ? 0 : wait_ms > 1000000 ? 1000000 : (int)wait_ms);
        if (found > 0) {
            return; // ready, or an error that the read or write after this returns
        }
        if (found == 0) {
            mp_raise_OSError(ETIMEDOUT);
        }
        if (errno != EINTR) {
            mp_raise_OSError(errno);
        }
        wait_ms = deadline_ms - monotonic_ns() / 1000000;
    }
}

static mp_obj_t cni_monotonic_ms(void) {
    return mp_obj_new_int_from_ll(monotonic_ns() / 1000000);
}
static MP_DEFINE_CONST_FUN_OBJ_0(monotonic_ms_obj, cni_monotonic_ms);

static mp_obj_t cni_boottime_ms(void) {
    return mp_obj_new_int_from_ll(clock_ns(CLOCK_BOOTTIME) / 1000000);
}
static MP_DEFINE_CONST_FUN_OBJ_0(boottime_ms_obj, cni_boottime_ms);

static mp_obj_t cni_unique(void) {
    char text[48];
    int length = snprintf(text, sizeof(text), "%d-%lld", (int)getpid(), monotonic_ns());
    return mp_obj_new_str(text, length);
}
static MP_DEFINE_CONST_FUN_OBJ_0(unique_obj, cni_unique);

static mp_obj_t cni_env(mp_obj_t name) {
    const char *value = getenv(mp_obj_str_get_str(name));
    return value == NULL ? mp_const_none : mp_obj_new_bytes((const byte *)value, strlen(value));
}
static MP_DEFINE_CONST_FUN_OBJ_1(env_obj, cni_env);

static mp_obj_t cni_read(mp_obj_t fd, mp_obj_t count, mp_obj_t wait_ms) {
    wait_for(mp_obj_get_int(fd), POLLIN, mp_obj_get_int(wait_ms));
    vstr_t data;
    vstr_init_len(&data, mp_obj_get_int(count));
    ssize_t size;
    do {
        size = read(mp_obj_get_int(fd), data.buf, data.len);
    } while (size < 0 && errno == EINTR);
    data.len = checked(size);
    return mp_obj_new_bytes_from_vstr(&data);
}
static MP_DEFINE_CONST_FUN_OBJ_3(read_obj, cni_read);

static mp_obj_t cni_write(mp_obj_t fd, mp_obj_t data, mp_obj_t wait_ms) {
    mp_buffer_info_t buffer;
    mp_get_buffer_raise(data, &buffer, MP_BUFFER_READ);
    wait_for(mp_obj_get_int(fd), POLLOUT, mp_obj_get_int(wait_ms));
    cni_has_printed |= mp_obj_get_int(fd) == STDOUT_FILENO;
    ssize_t size;
    do {
        size = write(mp_obj_get_int(fd), buffer.buf, buffer.len);
    } while (size < 0 && errno == EINTR);
    return MP_OBJ_NEW_SMALL_INT(checked(size));
}
static MP_DEFINE_CONST_FUN_OBJ_3(write_obj, cni_write);

static mp_obj_t cni_read_file(mp_obj_t path, mp_obj_t count) {
    vstr_t data;
    vstr_init_len(&data, mp_obj_get_int(count));
    int fd = checked(open(mp_obj_str_get_str(path), O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC));
    ssize_t size;
    do {
        size = read(fd, data.buf, data.len);
    } while (size < 0 && errno == EINTR);
    int cause = errno;
    close(fd);
    errno = cause;
    data.len = checked(size);
    return mp_obj_new_bytes_from_vstr(&data);
}
static MP_DEFINE_CONST_FUN_OBJ_2(read_file_obj, cni_read_file);

static mp_obj_t cni_connect(mp_obj_t path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *text = mp_obj_str_get_str(path);
    if (strlen(text) >= sizeof(address.sun_path)) {
        mp_raise_OSError(ENAMETOOLONG);
    }
    strcpy(address.sun_path, text);
    int fd = checked(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
        int cause = errno;
        close(fd);
        mp_raise_OSError(cause);
    }
    return MP_OBJ_NEW_SMALL_INT(fd);
}
static MP_DEFINE_CONST_FUN_OBJ_1(connect_obj, cni_connect);

static mp_obj_t cni_close(mp_obj_t fd) {
    checked(close(mp_obj_get_int(fd)));
    return mp_const_none;
}
static MP_DEFINE_CONST_FUN_OBJ_1(close_obj, cni_close);

static mp_obj_t cni_sleep_ms(mp_obj_t duration_ms) {
    long left = mp_obj_get_int(duration_ms);
    struct timespec duration = {.tv_sec = left / 1000, .tv_nsec = left % 1000 * 1000000};
    while (nanosleep(&duration, &duration) < 0 && errno == EINTR) {
    }
    return mp_const_none;
}
static MP_DEFINE_CONST_FUN_OBJ_1(sleep_ms_obj, cni_sleep_ms);

static mp_obj_t cni_euid(void) {
    return mp_obj_new_int_from_uint(geteuid());
}
static MP_DEFINE_CONST_FUN_OBJ_0(euid_obj, cni_euid);

static mp_obj_t cni_lstat(mp_obj_t path) {
    struct stat found;
    checked(lstat(mp_obj_str_get_str(path), &found));
    mp_obj_t items[] = {mp_obj_new_int_from_uint(found.st_mode), mp_obj_new_int_from_uint(found.st_uid)};
    return mp_obj_new_tuple(2, items);
}
static MP_DEFINE_CONST_FUN_OBJ_1(lstat_obj, cni_lstat);

static mp_obj_t cni_make_directory(mp_obj_t path) {
    checked(mkdir(mp_obj_str_get_str(path), 0700));
    return mp_const_none;
}
static MP_DEFINE_CONST_FUN_OBJ_1(make_directory_obj, cni_make_directory);

static mp_obj_t opened(mp_obj_t path, int flags) {
    return MP_OBJ_NEW_SMALL_INT(checked(open(mp_obj_str_get_str(path), flags | O_CLOEXEC, 0600)));
}

static mp_obj_t cni_open_lock(mp_obj_t path) {
    return opened(path, O_RDWR | O_CREAT | O_NOFOLLOW);
}
static MP_DEFINE_CONST_FUN_OBJ_1(open_lock_obj, cni_open_lock);

static mp_obj_t cni_open_directory(mp_obj_t path) {
    return opened(path, O_RDONLY | O_DIRECTORY);
}
static MP_DEFINE_CONST_FUN_OBJ_1(open_directory_obj, cni_open_directory);

static mp_obj_t cni_create(mp_obj_t path) {
    return opened(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
}
static MP_DEFINE_CONST_FUN_OBJ_1(create_obj, cni_create);

static mp_obj_t cni_lock_shared(mp_obj_t fd) {
    if (flock(mp_obj_get_int(fd), LOCK_SH | LOCK_NB) < 0) {
        if (errno == EWOULDBLOCK) {
            return mp_const_false;
        }
        mp_raise_OSError(errno);
    }
    return mp_const_true;
}
static MP_DEFINE_CONST_FUN_OBJ_1(lock_shared_obj, cni_lock_shared);

static mp_obj_t cni_sync(mp_obj_t fd) {
    checked(fsync(mp_obj_get_int(fd)));
    return mp_const_none;
}
static MP_DEFINE_CONST_FUN_OBJ_1(sync_obj, cni_sync);

static mp_obj_t cni_rename(mp_obj_t source, mp_obj_t target) {
    checked(rename(mp_obj_str_get_str(source), mp_obj_str_get_str(target)));
    return mp_const_none;
}
static MP_DEFINE_CONST_FUN_OBJ_2(rename_obj, cni_rename);

static mp_obj_t cni_remove(mp_obj_t path) {
    checked(unlink(mp_obj_str_get_str(path)));
    return mp_const_none;
}
static MP_DEFINE_CONST_FUN_OBJ_1(remove_obj, cni_remove);

static mp_obj_t cni_names(mp_obj_t path) {
    DIR *directory = opendir(mp_obj_str_get_str(path));
    checked(directory == NULL ? -1 : 0);
    mp_obj_t names = mp_obj_new_list(0, NULL);
    struct dirent *entry;
    while ((entry = readdir(directory)) != NULL) {
        char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
            continue;
        }
        for (char *byte = name; *byte != 0; byte++) {
            *byte = *byte & 0x80 ? '?' : *byte; // another program may have made a name that is not UTF-8
        }
        mp_obj_list_append(names, mp_obj_new_str(name, strlen(name)));
    }
    closedir(directory);
    return names;
}
static MP_DEFINE_CONST_FUN_OBJ_1(names_obj, cni_names);

static mp_obj_t cni_error_text(mp_obj_t number) {
    const char *text = strerror(mp_obj_get_int(number));
    return mp_obj_new_str(text, strlen(text));
}
static MP_DEFINE_CONST_FUN_OBJ_1(error_text_obj, cni_error_text);

static mp_obj_t cni_leave(mp_obj_t status) {
    _exit(mp_obj_get_int(status));
}
static MP_DEFINE_CONST_FUN_OBJ_1(leave_obj, cni_leave);

static const mp_rom_map_elem_t cni_globals_table[] = {
    {MP_ROM_QSTR(MP_QSTR___name__), MP_ROM_QSTR(MP_QSTR__cni)},
    {MP_ROM_QSTR(MP_QSTR_monotonic_ms), MP_ROM_PTR(&monotonic_ms_obj)},
    {MP_ROM_QSTR(MP_QSTR_boottime_ms), MP_ROM_PTR(&boottime_ms_obj)},
    {MP_ROM_QSTR(MP_QSTR_unique), MP_ROM_PTR(&unique_obj)},
    {MP_ROM_QSTR(MP_QSTR_env), MP_ROM_PTR(&env_obj)},
    {MP_ROM_QSTR(MP_QSTR_read), MP_ROM_PTR(&read_obj)},
    {MP_ROM_QSTR(MP_QSTR_write), MP_ROM_PTR(&write_obj)},
    {MP_ROM_QSTR(MP_QSTR_read_file), MP_ROM_PTR(&read_file_obj)},
    {MP_ROM_QSTR(MP_QSTR_connect), MP_ROM_PTR(&connect_obj)},
    {MP_ROM_QSTR(MP_QSTR_close), MP_ROM_PTR(&close_obj)},
    {MP_ROM_QSTR(MP_QSTR_sleep_ms), MP_ROM_PTR(&sleep_ms_obj)},
    {MP_ROM_QSTR(MP_QSTR_euid), MP_ROM_PTR(&euid_obj)},
    {MP_ROM_QSTR(MP_QSTR_lstat), MP_ROM_PTR(&lstat_obj)},
    {MP_ROM_QSTR(MP_QSTR_make_directory), MP_ROM_PTR(&make_directory_obj)},
    {MP_ROM_QSTR(MP_QSTR_open_lock), MP_ROM_PTR(&open_lock_obj)},
    {MP_ROM_QSTR(MP_QSTR_open_directory), MP_ROM_PTR(&open_directory_obj)},
    {MP_ROM_QSTR(MP_QSTR_create), MP_ROM_PTR(&create_obj)},
    {MP_ROM_QSTR(MP_QSTR_lock_shared), MP_ROM_PTR(&lock_shared_obj)},
    {MP_ROM_QSTR(MP_QSTR_sync), MP_ROM_PTR(&sync_obj)},
    {MP_ROM_QSTR(MP_QSTR_rename), MP_ROM_PTR(&rename_obj)},
    {MP_ROM_QSTR(MP_QSTR_remove), MP_ROM_PTR(&remove_obj)},
    {MP_ROM_QSTR(MP_QSTR_names), MP_ROM_PTR(&names_obj)},
    {MP_ROM_QSTR(MP_QSTR_error_text), MP_ROM_PTR(&error_text_obj)},
    {MP_ROM_QSTR(MP_QSTR_leave), MP_ROM_PTR(&leave_obj)},
};
static MP_DEFINE_CONST_DICT(cni_globals, cni_globals_table);

const mp_obj_module_t cni_module = {
    .base = {&mp_type_module},
    .globals = (mp_obj_dict_t *)&cni_globals,
};

MP_REGISTER_MODULE(MP_QSTR__cni, cni_module);
