//! The functions that replace those of libc, and `ibv_open_device`, in a program that preloads this
//! library.
//!
//! Each function serves calls for the device files, and passes all other calls on. It recognizes a
//! device file by its path or descriptor, without a lock.

use crate::fork::watch_forks;
use crate::user_memory::{copy_in, copy_out};
use crate::verbs_table::{self, Context};
use crate::{missing, process, rdma_cm, store_steps, store_trap, sysfs, umad};
use libc::{FILE, c_char, c_int, c_ulong, c_void, mode_t, off_t, size_t, ssize_t};
use rustix::io::Errno;
use std::ffi::CStr;
use std::ptr::slice_from_raw_parts_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The longest command. Its header has two 16-bit lengths, in words of 8 bytes.
const COMMAND_BYTES_MAX: usize = 8 + 16 + 2 * 8 * 65_535;
/// The longest buffer of a call, limited by the signed result.
const BUFFER_BYTES_MAX: usize = isize::MAX as usize;
/// The netlink protocol of RDMA (Linux `netlink.h`).
const NETLINK_RDMA: c_int = 20;
/// The `ioctl` request of all commands in the new form (Linux `rdma_user_ioctl_cmds.h`).
const RDMA_VERBS_IOCTL: c_ulong = 0xc018_1b01;

/// Calls the next function with this name, and caches its address. Why no lock protects the cache:
/// a child of fork(2) could inherit the lock from a thread that the child does not have. If two
/// threads look up the address at the same time, both find the same one.
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
        // SAFETY: the address is that of libc's function with this name, which POSIX declares with
        // this type.
        let next = unsafe { std::mem::transmute::<*mut c_void, Function>(address) };
        // SAFETY: the arguments are valid for this function: our caller passed them for it.
        unsafe { next($($argument),*) }
    }};
}

/// # Safety
/// As `ibv_open_device` of libibverbs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut c_void) -> *mut Context {
    type Function = unsafe extern "C" fn(*mut c_void) -> *mut Context;
    const NAME: *const c_char = c"ibv_open_device".as_ptr();
    // SAFETY: the names end with null bytes, and libibverbs declares the function with this type.
    // If the program loaded libibverbs with dlopen(3), RTLD_NEXT does not find it. The library is
    // then looked up by its name; it is loaded already.
    let function = unsafe {
        let mut address = libc::dlsym(libc::RTLD_NEXT, NAME);
        if address.is_null() {
            let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD;
            address = libc::dlsym(libc::dlopen(c"libibverbs.so.1".as_ptr(), flags), NAME);
        }
        assert!(!address.is_null(), "libibverbs has no ibv_open_device");
        std::mem::transmute::<*mut c_void, Function>(address)
    };
    // SAFETY: the argument is valid for this function: our caller passed it for it. The function
    // returns null or a new context, which no other thread has seen yet.
    unsafe {
        let context = function(device);
        verbs_table::replace(context);
        context
    }
}

fn fail(error: Errno) -> c_int {
    // SAFETY: the address is that of this thread's `errno`, which only this thread accesses.
    unsafe { *libc::__errno_location() = error.raw_os_error() };
    -1
}

#[derive(Clone, Copy)]
enum DeviceFile {
    Verbs,
    Umad,
    Manager,
    RdmaCm,
}

impl DeviceFile {
    const ALL: [(Self, &CStr); 4] = [
        (Self::Verbs, c"/dev/infiniband/uverbs0"),
        (Self::Umad, c"/dev/infiniband/umad0"),
        (Self::Manager, c"/dev/infiniband/issm0"),
        (Self::RdmaCm, c"/dev/infiniband/rdma_cm"),
    ];

    /// # Safety
    /// `path` is null or a null-terminated string.
    unsafe fn of_path(path: *const c_char) -> Option<Self> {
        if path.is_null() {
            return None;
        }
        // SAFETY: the path is not null, so by our contract it is a null-terminated string.
        let path = unsafe { CStr::from_ptr(path) };
        let found = Self::ALL.iter().find(|(_, name)| *name == path).map(|(file, _)| *file);
        found.filter(|file| !matches!(file, Self::RdmaCm) || rdma_cm::is_there())
    }

    /// The attributes of the file that programs read: its mode and device number.
    const fn stat(self) -> (mode_t, u64) {
        let (major, minor) = match self {
            Self::Umad => (231, 0),
            Self::Manager => (231, 64),
            Self::Verbs => (231, 192),
            Self::RdmaCm => (10, 58),
        };
        (libc::S_IFCHR | 0o666, libc::makedev(major, minor))
    }

    /// The file of a descriptor, for `fstat`. Programs do not call it for the other files.
    fn of_fd(fd: c_int) -> Option<Self> {
        match () {
            () if process::is_device(fd) => Some(Self::Verbs),
            () if rdma_cm::is_open(fd) => Some(Self::RdmaCm),
            () => None,
        }
    }

    fn open(self, flags: c_int) -> c_int {
        watch_forks();
        let opened = match self {
            Self::Verbs => store_steps::begin().and_then(|()| process::open()),
            Self::Umad => umad::open(flags & libc::O_NONBLOCK != 0),
            Self::Manager => umad::open_manager(),
            Self::RdmaCm => rdma_cm::open(flags & libc::O_NONBLOCK != 0),
        };
        if opened.is_ok() {
            missing::opened();
        }
        opened.unwrap_or_else(fail)
    }
}

/// Reports a failed open of a file. Leaves `errno` unchanged.
///
/// # Safety
/// `path` is null or a null-terminated string.
unsafe fn note_failed_open(folder: c_int, path: *const c_char) {
    // SAFETY: the address is that of this thread's `errno`, which only this thread accesses. The
    // path is a string if it is not null, by our contract.
    unsafe {
        let error = *libc::__errno_location();
        if !path.is_null() {
            missing::file(folder, CStr::from_ptr(path), Errno::from_raw_os_error(error));
        }
        *libc::__errno_location() = error;
    }
}

// Why variadic functions are defined with a fixed argument: the calling conventions of x86-64 and
// aarch64 (Linux) pass an integer argument in the same way in both cases.

macro_rules! open_functions {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As `open` of POSIX.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: the path is a string, as POSIX requires.
            if let Some(file) = unsafe { DeviceFile::of_path(path) } {
                return file.open(flags);
            }
            // SAFETY: as above.
            let found = unsafe { sysfs::Path::of(path) };
            let fd =
                next!($name as fn(*const c_char, c_int, mode_t) -> c_int;
                      found.as_ptr(), flags, mode);
            if fd < 0 {
                // SAFETY: as above.
                unsafe { note_failed_open(libc::AT_FDCWD, path) };
            }
            fd
        }
    )*};
}

open_functions!(open open64);

/// Functions whose first argument is a path. Paths of devices below `/sys` are looked up in the
/// device's own tree.
macro_rules! path_functions {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        /// # Safety
        /// As the function of POSIX.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, $($argument: $type),*) -> $result {
            // SAFETY: the path is a string, as POSIX requires.
            let path = unsafe { sysfs::Path::of(path) };
            next!($name as fn(*const c_char $(, $type)*) -> $result; path.as_ptr() $(, $argument)*)
        }
    )*};
}

// Calls within libc bypass these functions, so every path function that libraries call is listed.
path_functions! {
    opendir() -> *mut libc::DIR;
    scandir(list: *mut c_void, filter: *const c_void, compare: *const c_void) -> c_int;
    scandir64(list: *mut c_void, filter: *const c_void, compare: *const c_void) -> c_int;
    readlink(buffer: *mut c_char, bytes: size_t) -> ssize_t;
    realpath(resolved: *mut c_char) -> *mut c_char;
    lstat(out: *mut libc::stat) -> c_int;
    lstat64(out: *mut libc::stat64) -> c_int;
}

/// # Safety
/// As `access` of POSIX.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the path is a string, as POSIX requires.
    let (file, path) = unsafe { (DeviceFile::of_path(path), sysfs::Path::of(path)) };
    match file {
        Some(_) if mode & libc::X_OK != 0 => fail(Errno::ACCESS),
        Some(_) => 0,
        None => next!(access as fn(*const c_char, c_int) -> c_int; path.as_ptr(), mode),
    }
}

/// # Safety
/// As `close` of POSIX.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if process::is_device(fd) {
        process::close(fd);
    }
    if umad::is_open(fd) {
        umad::close(fd);
    }
    if rdma_cm::is_open(fd) {
        rdma_cm::close(fd);
    }
    next!(close as fn(c_int) -> c_int; fd)
}

/// # Safety
/// As `write` of POSIX.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, bytes: size_t) -> ssize_t {
    if umad::is_open(fd) {
        let mad = program_buffer(buffer.cast_mut(), bytes);
        // SAFETY: the buffer has `bytes` bytes, as POSIX requires.
        return result(mad.and_then(|mad| umad::write(fd, unsafe { &*mad })));
    }
    if rdma_cm::is_open(fd) {
        return result(rdma_cm::write(fd, buffer as u64, bytes));
    }
    if !process::is_device(fd) {
        return next!(write as fn(c_int, *const c_void, size_t) -> ssize_t; fd, buffer, bytes);
    }
    result(write_command(fd, buffer as u64, bytes).map(|()| bytes))
}

fn write_command(fd: c_int, address: u64, bytes: usize) -> Result<(), Errno> {
    if bytes > COMMAND_BYTES_MAX {
        return Err(Errno::INVAL);
    }
    let command = copy_in(address, bytes)?;
    let (address, answer) =
        process::command(fd, &command).inspect_err(|error| missing::command(&command, *error))?;
    copy_out(address, &answer)
}

/// The buffer of a program. If its length is 0, the address is ignored, as by the kernel.
fn program_buffer(address: *mut c_void, bytes: usize) -> Result<*mut [u8], Errno> {
    match (address.is_null(), bytes) {
        (_, 0) => Ok(&mut []),
        (true, ..=BUFFER_BYTES_MAX) => Err(Errno::FAULT),
        (false, ..=BUFFER_BYTES_MAX) => Ok(slice_from_raw_parts_mut(address.cast(), bytes)),
        _ => Err(Errno::INVAL),
    }
}

fn result(bytes: Result<usize, Errno>) -> ssize_t {
    bytes.map_or_else(|error| fail(error) as ssize_t, |bytes| bytes as ssize_t)
}

/// # Safety
/// As `read` of POSIX.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, bytes: size_t) -> ssize_t {
    if umad::is_open(fd) {
        let mad = program_buffer(buffer, bytes);
        // SAFETY: the buffer has `bytes` bytes, as POSIX requires.
        return result(mad.and_then(|mad| umad::read(fd, unsafe { &mut *mad })));
    }
    next!(read as fn(c_int, *mut c_void, size_t) -> ssize_t; fd, buffer, bytes)
}

/// # Safety
/// As `ioctl` of Linux, with one argument of the size of a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if process::is_device(fd) {
        if request != RDMA_VERBS_IOCTL || argument.is_null() {
            return fail(Errno::NOTTY);
        }
        // A kernel without this method returns the same error. The library then uses the older form
        // of the command, or does without.
        let error = Errno::PROTONOSUPPORT;
        // SAFETY: the argument of this request points to a header of 24 bytes, of which 6 are read.
        missing::ioctl(unsafe { argument.cast::<[u16; 3]>().read_unaligned() }, error);
        return fail(error);
    }
    if umad::is_open(fd) {
        // The request contains the size of its argument.
        let bytes = (request >> 16 & 0x3fff) as usize;
        let argument = program_buffer(argument, bytes);
        // SAFETY: the program passes a buffer of this size with this request.
        let answer = argument.and_then(|bytes| umad::ioctl(fd, request, unsafe { &mut *bytes }));
        return answer.map_or_else(fail, |()| 0);
    }
    next!(ioctl as fn(c_int, c_ulong, *mut c_void) -> c_int; fd, request, argument)
}

/// # Safety
/// As `socket` of POSIX.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    if family == libc::AF_NETLINK && protocol == NETLINK_RDMA {
        // Without netlink, the library finds devices in sysfs.
        return fail(Errno::PROTONOSUPPORT);
    }
    next!(socket as fn(c_int, c_int, c_int) -> c_int; family, kind, protocol)
}

macro_rules! map_functions {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As `mmap` of POSIX.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            address: *mut c_void,
            bytes: size_t,
            protection: c_int,
            flags: c_int,
            fd: c_int,
            offset: off_t,
        ) -> *mut c_void {
            // The file has only doorbell pages. Offsets of other kinds of pages are refused.
            if process::is_device(fd) && !process::has_page(offset as u64) {
                missing::map(offset as u64, Errno::INVAL);
                fail(Errno::INVAL);
                return libc::MAP_FAILED;
            }
            let is_trapped = store_trap::is_on() && process::is_device(fd);
            let protection = if is_trapped { libc::PROT_NONE } else { protection };
            let mapped =
                next!($name as fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
                      address, bytes, protection, flags, fd, offset);
            if is_trapped && mapped != libc::MAP_FAILED {
                process::watch_doorbells(fd, mapped as u64, bytes, offset as usize);
            }
            mapped
        }
    )*};
}

map_functions!(mmap mmap64);

macro_rules! stat_functions {
    ($by_path:ident, $by_fd:ident, $type:ty) => {
        /// # Safety
        /// As the function of POSIX.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $by_path(path: *const c_char, out: *mut $type) -> c_int {
            // SAFETY: the path is a string, as POSIX requires.
            let Some(file) = (unsafe { DeviceFile::of_path(path) }) else {
                // SAFETY: as above.
                let path = unsafe { sysfs::Path::of(path) };
                return next!($by_path as fn(*const c_char, *mut $type) -> c_int;
                             path.as_ptr(), out);
            };
            // SAFETY: `out` points to a structure that may be written, as POSIX requires. All zeros
            // are a valid value of it.
            unsafe {
                out.write(std::mem::zeroed());
                ((*out).st_mode, (*out).st_rdev) = file.stat();
            }
            0
        }

        /// # Safety
        /// As the function of POSIX.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $by_fd(fd: c_int, out: *mut $type) -> c_int {
            let Some(file) = DeviceFile::of_fd(fd) else {
                return next!($by_fd as fn(c_int, *mut $type) -> c_int; fd, out);
            };
            // SAFETY: as above.
            unsafe {
                out.write(std::mem::zeroed());
                ((*out).st_mode, (*out).st_rdev) = file.stat();
            }
            0
        }
    };
}

stat_functions!(stat, fstat, libc::stat);
stat_functions!(stat64, fstat64, libc::stat64);

macro_rules! openat_functions {
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
                // SAFETY: the path is a string, as POSIX requires.
                unsafe { note_failed_open(folder, path) };
            }
            fd
        }

        /// # Safety
        /// As `fopen` of POSIX.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
            // SAFETY: the path is a string, as POSIX requires.
            let found = unsafe { sysfs::Path::of(path) };
            let file = next!($fopen as fn(*const c_char, *const c_char) -> *mut FILE;
                             found.as_ptr(), mode);
            if file.is_null() {
                // SAFETY: as above.
                unsafe { note_failed_open(libc::AT_FDCWD, path) };
            }
            file
        }
    };
}

openat_functions!(openat, fopen);
openat_functions!(openat64, fopen64);
