//! The functions of libc that stand before those of libc in a program with this library preloaded.
//!
//! Each of them answers for the device and passes everything else on. The device is recognized by
//! its path or by its descriptor, without a lock.

use crate::verbs_table::{self, Context};
use crate::{missing, process};
use libc::{FILE, c_char, c_int, c_ulong, c_void, mode_t, off_t, size_t, ssize_t};
use rustix::io::Errno;
use std::ffi::CStr;
use std::sync::atomic::{AtomicPtr, Ordering};

const DEVICE: &CStr = c"/dev/infiniband/uverbs0";
const NETLINK_RDMA: c_int = 20;
/// The request of all commands in the form of `ioctl` (Linux `rdma_user_ioctl_cmds.h`).
const RDMA_VERBS_IOCTL: c_ulong = 0xc018_1b01;
const DEVICE_NUMBER: (u32, u32) = (231, 192);

/// Passes a call on to the next function of this name. Why its address has no lock: a child of fork
/// could begin with that of a thread that it does not have. Two threads find the same address.
macro_rules! next {
    ($name:ident as fn($($type:ty),*) -> $result:ty; $($argument:expr),*) => {{
        type Function = unsafe extern "C" fn($($type),*) -> $result;
        static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
        let mut address = NEXT.load(Ordering::Relaxed);
        if address.is_null() {
            let name = concat!(stringify!($name), "\0").as_ptr().cast();
            // SAFETY: the name ends with a null byte.
            address = unsafe { libc::dlsym(libc::RTLD_NEXT, name) };
            assert!(!address.is_null(), "libc has no {}", stringify!($name));
            NEXT.store(address, Ordering::Relaxed);
        }
        // SAFETY: what libc has under the name is a function of this type, which is its declaration
        // in POSIX.
        let next = unsafe { std::mem::transmute::<*mut c_void, Function>(address) };
        // SAFETY: the arguments are those that our caller gave for this very function.
        unsafe { next($($argument),*) }
    }};
}

/// # Safety
/// As `ibv_open_device` of libibverbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut c_void) -> *mut Context {
    type Function = unsafe extern "C" fn(*mut c_void) -> *mut Context;
    const NAME: *const c_char = c"ibv_open_device".as_ptr();
    // SAFETY: the names end with null bytes. A library that a program loaded for itself is not
    // behind this one in the order of symbols, so it is asked by its name; it is loaded already.
    let function = unsafe {
        let mut address = libc::dlsym(libc::RTLD_NEXT, NAME);
        if address.is_null() {
            let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
            address = libc::dlsym(libc::dlopen(c"libibverbs.so.1".as_ptr(), flags), NAME);
        }
        assert!(!address.is_null(), "libibverbs has no ibv_open_device");
        std::mem::transmute::<*mut c_void, Function>(address)
    };
    // SAFETY: the argument is the one that our caller gave for this very function; what it returns
    // is a new context.
    unsafe {
        let context = function(device);
        verbs_table::replace(context);
        context
    }
}

fn fail(error: Errno) -> c_int {
    // SAFETY: the address is that of this thread's `errno`.
    unsafe { *libc::__errno_location() = error.raw_os_error() };
    -1
}

/// # Safety
/// `path` is null or a string.
unsafe fn is_device_path(path: *const c_char) -> bool {
    // SAFETY: as our caller says.
    !path.is_null() && unsafe { CStr::from_ptr(path) } == DEVICE
}

fn open_device() -> c_int {
    let opened = process::open();
    if opened.is_ok() {
        missing::opened();
    }
    opened.unwrap_or_else(fail)
}

/// After a call that opens files has failed.
///
/// # Safety
/// `path` is null or a string.
unsafe fn note_unopened(folder: c_int, path: *const c_char) {
    // SAFETY: the address is that of this thread's `errno`, which is to stay; the path is as our
    // caller says.
    unsafe {
        let error = *libc::__errno_location();
        if !path.is_null() {
            missing::file(folder, CStr::from_ptr(path), Errno::from_raw_os_error(error));
        }
        *libc::__errno_location() = error;
    }
}

// Why variadic functions are defined with the argument spelled out: an integer argument is passed
// alike in both forms by the calling conventions of x86-64 and aarch64.

/// # Safety
/// As `open` of POSIX.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the path is a string, as POSIX asks for.
    if unsafe { is_device_path(path) } {
        return open_device();
    }
    let fd = next!(open as fn(*const c_char, c_int, mode_t) -> c_int; path, flags, mode);
    if fd < 0 {
        // SAFETY: as above.
        unsafe { note_unopened(libc::AT_FDCWD, path) };
    }
    fd
}

/// # Safety
/// As `open` of POSIX.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: the path is a string, as POSIX asks for.
    if unsafe { is_device_path(path) } {
        return open_device();
    }
    let fd = next!(open64 as fn(*const c_char, c_int, mode_t) -> c_int; path, flags, mode);
    if fd < 0 {
        // SAFETY: as above.
        unsafe { note_unopened(libc::AT_FDCWD, path) };
    }
    fd
}

/// # Safety
/// As `close` of POSIX.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if process::is_device(fd) {
        process::close(fd);
    }
    next!(close as fn(c_int) -> c_int; fd)
}

/// # Safety
/// As `write` of POSIX.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, bytes: size_t) -> ssize_t {
    if !process::is_device(fd) {
        return next!(write as fn(c_int, *const c_void, size_t) -> ssize_t; fd, buffer, bytes);
    }
    // SAFETY: the buffer has so many bytes, as POSIX asks for.
    let command = unsafe { std::slice::from_raw_parts(buffer.cast(), bytes) };
    match process::command(fd, command) {
        Ok((address, answer)) => {
            // SAFETY: the command has the address of a buffer for the answer, of the length that
            // the answer was cut to.
            unsafe { std::ptr::copy(answer.as_ptr(), address as *mut u8, answer.len()) };
            bytes as ssize_t
        }
        Err(error) => {
            missing::command(command, error);
            fail(error) as ssize_t
        }
    }
}

/// # Safety
/// As `ioctl` of Linux, with one argument of the size of a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if process::is_device(fd) {
        if request == RDMA_VERBS_IOCTL && !argument.is_null() {
            // SAFETY: the argument of this request has a header of 24 bytes.
            missing::ioctl(unsafe { argument.cast::<[u16; 3]>().read_unaligned() }, Errno::NOTTY);
        }
        // The library then uses the older form of its commands.
        return fail(Errno::NOTTY);
    }
    next!(ioctl as fn(c_int, c_ulong, *mut c_void) -> c_int; fd, request, argument)
}

/// # Safety
/// As `socket` of POSIX.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    if family == libc::AF_NETLINK && protocol == NETLINK_RDMA {
        // The library then finds devices in sysfs.
        return fail(Errno::PROTONOSUPPORT);
    }
    next!(socket as fn(c_int, c_int, c_int) -> c_int; family, kind, protocol)
}

fn map_device(fd: c_int, offset: off_t) -> *mut c_void {
    match process::doorbell_page(fd, offset as u64) {
        Ok(address) => address as *mut c_void,
        Err(error) => {
            missing::map(offset as u64, error);
            fail(error);
            libc::MAP_FAILED
        }
    }
}

/// # Safety
/// As `mmap` of POSIX.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    if process::is_device(fd) {
        return map_device(fd, offset);
    }
    next!(mmap as fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
          address, bytes, protection, flags, fd, offset)
}

/// # Safety
/// As `mmap` of POSIX.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    if process::is_device(fd) {
        return map_device(fd, offset);
    }
    next!(mmap64 as fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
          address, bytes, protection, flags, fd, offset)
}

/// # Safety
/// As `munmap` of POSIX.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(address: *mut c_void, bytes: size_t) -> c_int {
    if process::has_files() && process::is_doorbell_page(address as u64) {
        return 0;
    }
    next!(munmap as fn(*mut c_void, size_t) -> c_int; address, bytes)
}

/// The attributes of the device's file, of which programs read type and number.
fn device_stat() -> (mode_t, u64) {
    let (major, minor) = DEVICE_NUMBER;
    (libc::S_IFCHR | 0o666, libc::makedev(major, minor))
}

macro_rules! stat_functions {
    ($by_path:ident, $by_fd:ident, $type:ty) => {
        /// # Safety
        /// As the function of POSIX.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $by_path(path: *const c_char, out: *mut $type) -> c_int {
            // SAFETY: the path is a string, as POSIX asks for.
            if !unsafe { is_device_path(path) } {
                return next!($by_path as fn(*const c_char, *mut $type) -> c_int; path, out);
            }
            // SAFETY: `out` is a structure to write to, as POSIX asks for; all zeros are one.
            unsafe {
                out.write(std::mem::zeroed());
                ((*out).st_mode, (*out).st_rdev) = device_stat();
            }
            0
        }

        /// # Safety
        /// As the function of POSIX.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $by_fd(fd: c_int, out: *mut $type) -> c_int {
            if !process::is_device(fd) {
                return next!($by_fd as fn(c_int, *mut $type) -> c_int; fd, out);
            }
            // SAFETY: as above.
            unsafe {
                out.write(std::mem::zeroed());
                ((*out).st_mode, (*out).st_rdev) = device_stat();
            }
            0
        }
    };
}

stat_functions!(stat, fstat, libc::stat);
stat_functions!(stat64, fstat64, libc::stat64);

macro_rules! open_functions {
    ($openat:ident, $fopen:ident) => {
        /// # Safety
        /// As `openat` of POSIX.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $openat(
            folder: c_int,
            path: *const c_char,
            flags: c_int,
            mode: mode_t,
        ) -> c_int {
            let fd = next!($openat as fn(c_int, *const c_char, c_int, mode_t) -> c_int;
                           folder, path, flags, mode);
            if fd < 0 {
                // SAFETY: the path is a string, as POSIX asks for.
                unsafe { note_unopened(folder, path) };
            }
            fd
        }

        /// # Safety
        /// As `fopen` of POSIX.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
            let file = next!($fopen as fn(*const c_char, *const c_char) -> *mut FILE; path, mode);
            if file.is_null() {
                // SAFETY: the path is a string, as POSIX asks for.
                unsafe { note_unopened(libc::AT_FDCWD, path) };
            }
            file
        }
    };
}

open_functions!(openat, fopen);
open_functions!(openat64, fopen64);
